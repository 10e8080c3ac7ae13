"""The plan selects the same references as a simple model."""

from hypothesis import given, settings
from hypothesis import strategies as st

from mama_structs.references.matches import FieldRule, IdMatch
from mama_structs.references.options import ReferenceOptions
from mama_structs.references.section import PER_ENTITY_LIMIT, TOTAL_LIMIT, select_references

TYPES = {"0": "guild", "1": "player", "2": "planet"}


def found(entity_id, *, row=None, primary=True):
    rule = FieldRule(type=TYPES[entity_id[0]], field="x", primary=primary)
    return IdMatch((entity_id, rule, row, None, "x"))


@st.composite
def occurrences(draw):
    """Return a strategy for matches in payload order, inside, before and after the rows of a list."""
    ids = st.builds("{}-{}".format, st.sampled_from("012"), st.integers(1, 5))
    places = [None] * draw(st.integers(0, 4))
    for row in range(draw(st.integers(0, 5))):
        places += [row] * draw(st.integers(0, 6))
    places += [None] * draw(st.integers(0, 4))
    return [found(draw(ids), row=row, primary=draw(st.booleans())) for row in places]


def options_of(draw_types):
    return st.builds(
        ReferenceOptions,
        max_references=st.integers(0, 12),
        max_references_per_entity=st.integers(0, 5),
        reference_types=draw_types,
    )


def model(occurred, options, scope, known, started):
    """Return the ids that the simple model selects. It applies one selection rule after the other."""
    asked = [
        one
        for one in occurred
        if one.id not in known
        and (scope == "all" or one.is_primary)
        and (options.reference_types is None or one.type in options.reference_types)
    ]
    in_rows = {}
    for one in asked:
        if one.row is not None and one.id not in in_rows.setdefault(one.row, []):
            in_rows[one.row].append(one.id)
    allowed = [
        one.id for one in asked if one.row is None or one.id in in_rows[one.row][: options.max_references_per_entity]
    ]
    start = list(dict.fromkeys(allowed))[: max(0, options.max_references - started)]
    return start, {one.id for one in asked}, set(allowed)


@given(
    occurred=occurrences(),
    options=options_of(st.none() | st.lists(st.sampled_from(["guild", "player", "planet", "fleet"]), max_size=2)),
    scope=st.sampled_from(["primary", "all"]),
    known=st.sets(st.builds("{}-{}".format, st.sampled_from("012"), st.integers(1, 5)), max_size=3),
    started=st.integers(0, 14),
)
@settings(max_examples=max(300, settings.default.max_examples), deadline=None)
def test_plan_level_matches_model(occurred, options, scope, known, started):
    """
    The first allowed ids in payload order are selected.

    Every other requested id is omitted with its limit.
    """
    start, wanted, allowed = model(occurred, options, scope, known, started)
    plan = select_references(occurred, options, scope, known_ids=known, previous_count=started)

    assert start == list(plan.selected)
    assert wanted == set(plan.selected) | set(plan.omitted)
    assert not set(plan.selected) & set(plan.omitted)
    assert {one: TOTAL_LIMIT if one in allowed else PER_ENTITY_LIMIT for one in wanted - set(start)} == plan.omitted
    assert {one.id for one in occurred if one.id not in known} - wanted == set(plan.filtered)
    assert all(TYPES[one[0]] == kind for one, kind in plan.selected.items())


@given(occurred=occurrences(), options=options_of(st.none()))
@settings(deadline=None)
def test_plan_level_filters_only_ids_without_primary_match(occurred, options):
    plan = select_references(occurred, options, "primary")

    assert {one.id for one in occurred if one.is_primary}.isdisjoint(plan.filtered)
    assert {"primary"} >= set(plan.filtered.values())


def test_plan_level_without_matches_is_empty():
    plan = select_references([], ReferenceOptions(), "all")

    assert ({}, {}, {}) == (plan.selected, plan.omitted, plan.filtered)


def test_plan_level_with_limit_zero_omits_all_ids():
    occurred = [found("1-1"), found("0-1", row=0), found("1-1", row=1)]
    none = select_references(occurred, ReferenceOptions(max_references=0), "all")
    no_rows = select_references(occurred, ReferenceOptions(max_references_per_entity=0), "all")

    assert ({}, {"1-1": TOTAL_LIMIT, "0-1": TOTAL_LIMIT}) == (none.selected, none.omitted)
    assert ({"1-1": "player"}, {"0-1": PER_ENTITY_LIMIT}) == (no_rows.selected, no_rows.omitted)


def test_plan_level_counts_each_id_once_per_row():
    """An id selected by an earlier row still counts for the limit of a later row."""
    occurred = [
        found(text, row=row)
        for row, text in [(0, "1-1"), (0, "1-1"), (0, "1-2"), (0, "1-3"), (1, "1-1"), (1, "1-4"), (1, "1-5")]
    ]
    plan = select_references(occurred, ReferenceOptions(max_references_per_entity=2), "all")

    assert ["1-1", "1-2", "1-4"] == list(plan.selected)
    assert {"1-3": PER_ENTITY_LIMIT, "1-5": PER_ENTITY_LIMIT} == plan.omitted


def test_plan_level_selects_id_omitted_by_one_row_through_another():
    occurred = [found("1-1", row=0), found("1-2", row=0), found("1-2", row=1)]
    plan = select_references(occurred, ReferenceOptions(max_references_per_entity=1), "all")

    assert (["1-1", "1-2"], {}) == (list(plan.selected), plan.omitted)


def test_plan_level_records_reason_of_exclusion():
    """Secondary fields take precedence over types."""
    occurred = [found("1-1", primary=False), found("2-1"), found("0-1")]
    plan = select_references(occurred, ReferenceOptions(reference_types=["guild"]), "primary")

    assert {"1-1": "primary", "2-1": "types"} == plan.filtered
    assert {"0-1": "guild"} == plan.selected


def test_plan_level_subtracts_references_of_earlier_levels():
    occurred = [found("1-1"), found("1-2")]

    assert ["1-1"] == list(
        select_references(occurred, ReferenceOptions(max_references=5), "all", previous_count=4).selected
    )
    assert [] == list(select_references(occurred, ReferenceOptions(max_references=5), "all", previous_count=9).selected)
