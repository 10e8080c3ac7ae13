"""Validation and default values of `ReferenceOptions`."""

import subprocess
import sys

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs.errors import InvalidArgument
from mama_structs.references.options import ReferenceOptions
from mama_structs.structs.ids import EntityType


def test_defaults_match_design():
    """By default all direct references are requested: at most 50, 5 per row, within 5 seconds."""
    options = ReferenceOptions()

    assert (None, 1, None, 50, 5) == (
        options.include_references,
        options.reference_depth,
        options.reference_types,
        options.max_references,
        options.max_references_per_entity,
    )
    assert options._has_references
    assert (False, "indicate", None, 5.0) == (options.metadata, options.on_error, options.max_bytes, options.deadline)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("include_references", value) for value in ("secondary", 1, 0, "", [], "True")),
        *(("reference_depth", value) for value in (-1, 3, True, False, 1.0, 2.0, "1", None, float("nan"), [], 10**30)),
        *(("max_depth", value) for value in (-1, 3, True, "1", None)),
        *(("allowed_types", value) for value in ("planet", 5, [5])),
        *(("reference_types", value) for value in ("planet", 5, b"planet", [5], [None], iter(["planet"]))),
        *(("max_references", value) for value in (-1, True, 1.5, "50", None, float("inf"))),
        *(("max_references_per_entity", value) for value in (-1, False, 1.5, "5", None)),
        *(("metadata", value) for value in (0, 1, "yes", None)),
        *(("on_error", value) for value in ("raise", None, True, [])),
        *(("max_bytes", value) for value in (-1, True, 1.5, "1")),
        *(("deadline", value) for value in (0, -1, True, None, "5", float("inf"), float("nan"), 10**400)),
    ],
)
def test_invalid_value_raises_error_that_names_the_argument(name, value):
    with pytest.raises(InvalidArgument) as caught:
        ReferenceOptions(**{name: value})

    assert name in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("include_references", value) for value in (None, True, False, "primary", "all")),
        *(("reference_depth", value) for value in (0, 1, 2)),
        *(("max_references", value) for value in (0, 1, 10**9)),
        *(("max_references_per_entity", value) for value in (0, 1)),
        *(("max_bytes", value) for value in (None, 0, 1)),
        *(("deadline", value) for value in (1, 0.001, sys.float_info.max)),
        *(("on_error", value) for value in ("indicate", "omit")),
    ],
)
def test_limits_are_inclusive(name, value):
    assert value == getattr(ReferenceOptions(**{name: value}), name)


def test_type_names_are_deduplicated_plain_text():
    options = ReferenceOptions(reference_types=["planet", EntityType.GUILD, "planet"])

    assert ("planet", "guild") == options.reference_types
    assert [str, str] == [type(name) for name in options.reference_types]


def test_types_from_set_have_the_same_order_in_every_process():
    """The iteration order of a set depends on the process."""
    code = "from mama_structs import ReferenceOptions as R; print(R(reference_types={'planet', 'guild', 'fleet', 'player'}))"
    shown = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True, text=True
        ).stdout
        for seed in ("1", "2", "3")
    }

    assert 1 == len(shown)


@pytest.mark.parametrize(
    ("asked", "on_query", "on_list"),
    [(True, "all", "primary"), ("primary", "primary", "primary"), ("all", "all", "all")],
)
def test_scope_of_list_is_primary_unless_all_is_requested(asked, on_query, on_list):
    options = ReferenceOptions(include_references=asked)

    assert on_query == options._scope(is_list=False)
    assert on_list == options._scope(is_list=True)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, True),
        ({"include_references": "primary"}, True),
        ({"include_references": False}, False),
        ({"reference_depth": 0}, False),
        ({"include_references": False, "reference_depth": 0}, False),
    ],
)
def test_wanted_is_false_at_depth_zero_or_without_references(options, wanted):
    assert wanted is ReferenceOptions(**options)._has_references


@given(
    st.builds(
        ReferenceOptions,
        include_references=st.sampled_from([None, True, False, "primary", "all"]),
        reference_depth=st.integers(0, 2),
        reference_types=st.none() | st.lists(st.text()),
        max_references=st.integers(min_value=0),
        metadata=st.booleans(),
        max_bytes=st.none() | st.integers(min_value=0),
        deadline=st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    )
)
def test_repr_evaluates_to_equal_options(options):
    assert options == eval(repr(options))


def test_options_are_immutable():
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        ReferenceOptions().max_references = 1
