"""Validation of arguments, and its attrs validators."""

import datetime as dt
import enum
import sys

import attrs
import numpy as np
import pytest

from mama_structs._internal import validation as _check
from mama_structs.errors import InvalidArgument, InvalidSetting


class Shape(enum.StrEnum):
    """An enum as the type of an argument."""

    ROUND = "round"
    FLAT = "flat"


class Unshowable:
    """A value whose repr raises."""

    def __repr__(self):
        raise RuntimeError("no")


ONE = dt.datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=dt.timezone(dt.timedelta(hours=2)))


@pytest.mark.parametrize(
    ("expected", "call"),
    [
        (3, lambda: _check.check_integer("n", 3, 1, 3)),
        (0, lambda: _check.check_integer("n", 0)),
        (7, lambda: _check.check_integer("n", _check.to_int(np.int64(7)))),
        (2.0, lambda: _check.check_number("n", 2)),
        (0.5, lambda: _check.check_ratio("n", np.float32(0.5))),
        (1.0, lambda: _check.check_ratio("n", 1)),
        (0.0, lambda: _check.check_seconds("n", 0, allow_zero=True)),
        (sys.float_info.max, lambda: _check.check_seconds("n", sys.float_info.max)),
        (False, lambda: _check.check_bool("n", value=False)),
        (Shape.FLAT, lambda: _check.check_choice("n", "flat", Shape)),
        ("b", lambda: _check.check_choice("n", "b", ("a", "b"))),
        ("é", lambda: _check.check_text("n", "é", max_chars=1)),
        ("", lambda: _check.check_text("n", "", allow_empty=True)),
        (b"\xc3\xa9", lambda: _check.check_encodable("n", "é")),
        (("a", "b"), lambda: _check.check_texts("n", iter(["a", "b"]), max_items=2)),
        (dt.datetime(2026, 1, 2, 1, 4, 5, 678_000, tzinfo=dt.UTC), lambda: _check.check_time("n", ONE)),
        (dt.datetime(2026, 1, 2, tzinfo=dt.UTC), lambda: _check.check_time("n", "2026-01-02T00:00Z")),
    ],
)
def test_check_returns_valid_value_as_builtin_type(expected, call):
    found = call()

    assert (type(expected), expected) == (type(found), found)


@pytest.mark.parametrize(
    ("message", "call"),
    [
        ("n must be a whole number of 1 or more, got True", lambda: _check.check_integer("n", True, 1)),
        ("n must be a whole number from 1 to 3, got 4", lambda: _check.check_integer("n", 4, 1, 3)),
        ("n must be a whole number, 1 or more, got 0", lambda: _check.check_integer("n", 0, 1, separator=",")),
        ("n must be a whole number of 0 or more, got a int", lambda: _check.check_integer("n", -(10**5000))),
        ("n must be a finite number, got nan", lambda: _check.check_number("n", float("nan"))),
        ("n must be a finite number, got 1000", lambda: _check.check_number("n", 10**400)),
        ("n must be a number from 0 to 1, got '0'", lambda: _check.check_ratio("n", "0")),
        ("n must be a number from 0 to 1, got nan", lambda: _check.check_ratio("n", float("nan"))),
        ("n must be more than 0 seconds, got 0", lambda: _check.check_seconds("n", 0)),
        (
            "n must be 0 or more seconds, at most 9, got 10",
            lambda: _check.check_seconds("n", 10, allow_zero=True, maximum=9),
        ),
        ("n must be True or False, got a Unshowable", lambda: _check.check_bool("n", Unshowable())),
        ("n must be one of round, flat, got []", lambda: _check.check_choice("n", [], Shape)),
        ("n must be a text, got bytes", lambda: _check.check_text("n", b"x")),
        ("n must not be empty", lambda: _check.check_text("n", " \n")),
        ("n must have at most 1 characters, got 2", lambda: _check.check_text("n", "ab", max_chars=1)),
        ("n: character 2 is a lone surrogate, which no file can hold", lambda: _check.check_text("n", "a\ud800")),
        ("n must be a list of texts, got str", lambda: _check.check_texts("n", "ab")),
        ("n must be a list of texts, got dict", lambda: _check.check_texts("n", {})),
        ("n must have at most 1 items, got 2", lambda: _check.check_texts("n", ["a", "b"], max_items=1)),
        ("n[1] must be a text, got int", lambda: _check.check_texts("n", ["a", 1])),
        ("n must be an ISO 8601 time, got 'soon'", lambda: _check.check_time("n", "soon")),
        ("n must be a datetime, date, timedelta or ISO 8601 text, got int", lambda: _check.check_time("n", 1)),
        ("n must not be a negative timedelta, got ", lambda: _check.check_time("n", dt.timedelta(-1))),
        ("n must lie between 1970 and 9000, got ", lambda: _check.check_time("n", ONE.replace(year=1969))),
    ],
)
def test_check_rejects_invalid_value_with_name_rule_and_value(message, call):
    with pytest.raises(InvalidArgument) as caught:
        call()

    assert caught.value.args[0].startswith(message)


def test_attrs_validators_name_the_field():
    """`setting` includes the class name, `field` does not."""

    @attrs.frozen
    class Options:
        size: int = attrs.field(default=1, validator=_check.setting_validator(_check.check_integer, 1))
        depth: int = attrs.field(default=1, validator=_check.field_validator(_check.check_integer, maximum=2))

    with pytest.raises(InvalidSetting, match=r"^Options\.size must be a whole number of 1 or more, got 0$") as caught:
        Options(size=0)
    with pytest.raises(InvalidArgument, match=r"^depth must be a whole number from 0 to 2, got 3$"):
        Options(depth=3)

    assert "Options.size" == caught.value.name
