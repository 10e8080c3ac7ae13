"""The public `Filter`: validation, representation and conversion for engines."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs import EntityId, Filter, MemoryType
from mama_structs.errors import InvalidArgument
from mama_structs.memory.types.engine import EngineFilter
from mama_structs.memory.types.filters import to_engine_filter

NOW = datetime(2026, 6, 15, 12, tzinfo=UTC)
EVERYTHING = {
    "type": "insight",
    "topic": "auth",
    "since": NOW - timedelta(days=7),
    "until": NOW,
    "origin": ["user", "model"],
    "min_trust": "model",
    "tags": ["a", "b"],
    "mentions": "1-11",
    "source": "log",
    "outcome": "FAILED",
    "created_by": "llm",
    "namespace": "team",
    "extra": {"ticket": 12},
}


def test_filter_without_conditions_is_empty_and_matches_all():
    assert Filter().is_empty
    assert EngineFilter() == to_engine_filter(Filter(), now=NOW) == to_engine_filter(None, now=NOW)
    assert "Filter()" == repr(Filter())


@pytest.mark.parametrize("name", [field.name for field in attrs.fields(Filter)])
def test_filter_with_one_condition_is_not_empty(name):
    where = Filter(**{name: EVERYTHING[name]})

    assert not where.is_empty
    assert where == Filter(**{name: EVERYTHING[name]})
    assert EngineFilter() != to_engine_filter(where, now=NOW)


@pytest.mark.parametrize(
    ("given_conditions", "message"),
    [
        ({"type": "idea"}, "type must be one of"),
        ({"type": []}, "type must name at least one"),
        ({"type": 5}, "type must be a list"),
        ({"topic": " "}, "topic must not be empty"),
        ({"topic": "x" * 201}, "topic must have at most"),
        ({"since": "yesterday"}, "since must be an ISO 8601 time"),
        ({"since": 5}, "since must be a datetime, date, timedelta"),
        ({"until": timedelta(days=-1)}, "until must not be a negative timedelta"),
        ({"since": timedelta(days=10**6)}, "since must lie between 1970 and 9000"),
        ({"origin": "me"}, "origin must be one of"),
        ({"min_trust": "me"}, "min_trust must be one of"),
        ({"tags": []}, "tags must not be empty"),
        ({"tags": [""]}, "tags must not be empty"),
        ({"mentions": []}, "mentions must name at least one"),
        ({"source": ""}, "source must not be empty"),
        ({"outcome": "GOOD"}, "outcome must be one of"),
        ({"created_by": "me"}, "created_by must be one of"),
        ({"namespace": ""}, "namespace must not be empty"),
        ({"extra": {}}, "extra must have at least one key"),
        ({"extra": {"a": {1}}}, "extra must be JSON"),
        ({"extra": ["a"]}, "extra must be a mapping"),
    ],
)
def test_filter_rejects_invalid_condition(given_conditions, message):
    with pytest.raises(InvalidArgument, match=message):
        Filter(**given_conditions)


def test_filter_is_frozen_and_takes_keywords_only():
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        Filter(topic="auth").topic = "other"
    with pytest.raises(TypeError):
        Filter("insight")


def test_filter_repr_names_given_conditions_as_callers_write_them():
    where = Filter(type=["insight", "context"], tags="food", outcome="failed".upper(), extra={"a": 1})

    assert "Filter(type=['context', 'insight'], tags='food', outcome='FAILED', extra={'a': 1})" == repr(where)
    assert where == eval(repr(where))


def test_filter_to_json_is_json():
    data = json.loads(Filter(**EVERYTHING).to_json())

    assert EVERYTHING.keys() == data.keys()
    assert ["insight"] == data["type"]
    assert {"ticket": 12} == data["extra"]


@pytest.mark.parametrize("name", ["type", "topic", "since"])
def test_condition_given_directly_and_in_filter_is_rejected(name):
    value = EVERYTHING[name]

    assert to_engine_filter(Filter(**{name: value}), now=NOW) == to_engine_filter(now=NOW, **{name: value})
    with pytest.raises(InvalidArgument, match=f"{name} is given twice"):
        to_engine_filter(Filter(**{name: value}), now=NOW, **{name: value})


@pytest.mark.parametrize("where", [{"tags": "a"}, "tags", EngineFilter(), 5])
def test_to_engine_filter_rejects_values_of_other_types(where):
    with pytest.raises(InvalidArgument, match="where must be a Filter") as caught:
        to_engine_filter(where, now=NOW)

    assert "Filter(tags=" in caught.value.hint


def test_timedelta_is_relative_to_the_call_and_not_to_the_filter():
    where = Filter(since=timedelta(days=7), until=timedelta(hours=1))
    later = NOW + timedelta(days=100)

    for now in (NOW, later):
        converted = to_engine_filter(where, now=now)
        assert (now - timedelta(days=7), now - timedelta(hours=1)) == (converted.since, converted.until)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (NOW, NOW),
        (datetime(2026, 6, 1, 10), datetime(2026, 6, 1, 10).astimezone(UTC)),  # noqa: DTZ001 - the case
        (date(2026, 6, 1), datetime(2026, 6, 1).astimezone(UTC)),
        ("2026-06-01", datetime(2026, 6, 1).astimezone(UTC)),
        ("2026-06-01T10:00:00Z", datetime(2026, 6, 1, 10, tzinfo=UTC)),
        ("2026-06-01T10:00:00+09:00", datetime(2026, 6, 1, 1, tzinfo=UTC)),
    ],
)
def test_times_are_accepted_in_natural_forms(value, expected):
    """Naive times and dates are local time."""
    assert expected == to_engine_filter(Filter(since=value), now=NOW).since
    assert expected == to_engine_filter(now=NOW, since=value).since


@given(
    types=st.sets(st.sampled_from(list(MemoryType)), min_size=1),
    tags=st.lists(st.text(st.characters(codec="utf-8"), min_size=1).filter(str.strip), min_size=1, max_size=3),
)
def test_filter_treats_single_value_like_list_of_one(types, tags):
    where = Filter(type=[one.value for one in types], tags=tags)
    engine = to_engine_filter(where, now=NOW)

    assert where == Filter(type=types, tags=tuple(tags))
    assert types == engine.types
    assert tuple(tags) == engine.tags
    if len(types) == len(tags) == 1:
        assert where == Filter(type=next(iter(types)), tags=tags[0])


def test_filters_with_extra_of_different_json_are_not_equal():
    """Python regards True and 1 as equal, JSON does not."""
    where = Filter(extra={"a": 1, "b": 2})

    assert where == Filter(extra={"b": 2, "a": 1})
    assert hash(where) == hash(Filter(extra={"b": 2, "a": 1}))
    assert where != Filter(extra={"a": True, "b": 2})
    assert where != Filter()


def test_extra_rejects_integer_that_has_too_many_digits_for_json():
    with pytest.raises(InvalidArgument, match="extra must have integers of at most"):
        Filter(extra={"a": 10**5000})


def test_filters_with_equal_numbers_in_extra_are_equal():
    """Both match the same memories."""
    assert Filter(extra={"a": 1}) == Filter(extra={"a": 1.0})


def test_mentions_accepts_entity_ids():
    one, other = EntityId.parse("1-11"), EntityId.parse("2-1")

    assert Filter(mentions="1-11") == Filter(mentions=one)
    assert Filter(mentions=["1-11", "2-1"]) == Filter(mentions=[one, other]) == Filter(mentions=("1-11", other))


@given(
    back=st.timedeltas(timedelta(0), timedelta(days=3650)),
    end=st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001 - a bound
)
def test_filter_is_equal_after_a_round_trip_through_its_json_form(back, end):
    where = Filter(**EVERYTHING | {"since": back, "until": end})

    assert where == Filter(**where.to_dict())


@pytest.mark.parametrize("text", ["P", "PX", "P1", "-P1D"])
def test_invalid_duration_is_rejected(text):
    with pytest.raises(InvalidArgument, match="since must"):
        Filter(since=text)
