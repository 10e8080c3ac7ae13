"""What one call may ask of its references, and what is refused at the door."""

import subprocess
import sys

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs.errors import InvalidArgument
from mama_structs.references.options import ReferenceOptions
from mama_structs.structs.ids import EntityType


def test_defaults_are_those_of_the_design():
    """Without a word, all direct references are wanted: 50 at most, 5 a row, within 5 seconds."""
    options = ReferenceOptions()

    assert (None, 1, None, 50, 5) == (
        options.include_references,
        options.reference_depth,
        options.reference_types,
        options.max_references,
        options.max_references_per_entity,
    )
    assert options.wanted
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
def test_a_value_that_breaks_its_rule_is_refused_by_name(name, value):
    """Whatever breaks a rule is refused at once, and the message names the argument and the value."""
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
def test_the_bounds_themselves_are_allowed(name, value):
    """Each rule allows its own ends."""
    assert value == getattr(ReferenceOptions(**{name: value}), name)


def test_type_names_are_kept_once_and_as_plain_text():
    """Names may come as any collection, repeated or as members of an enum."""
    options = ReferenceOptions(reference_types=["planet", EntityType.GUILD, "planet"])

    assert ("planet", "guild") == options.reference_types
    assert [str, str] == [type(name) for name in options.reference_types]


def test_a_set_of_types_gives_the_same_options_in_every_process():
    """A set's order depends on the process, the options made from it do not."""
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
def test_a_list_shows_direct_relations_unless_all_are_asked_for(asked, on_query, on_list):
    """True means primary on a list; "all" must be asked for."""
    options = ReferenceOptions(include_references=asked)

    assert on_query == options.scope(is_list=False)
    assert on_list == options.scope(is_list=True)


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
def test_nothing_is_wanted_at_depth_zero_or_without_references(options, wanted):
    """Depth 0 switches off as False does."""
    assert wanted is ReferenceOptions(**options).wanted


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
def test_the_repr_can_be_pasted_back(options):
    """The repr makes equal options again."""
    assert options == eval(repr(options))


def test_options_cannot_be_changed():
    """Options are values."""
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        ReferenceOptions().max_references = 1
