"""The id scheme of the chain: agreement of its pattern with the id parser, and its rules for fields."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mama_structs.errors import InvalidArgument
from mama_structs.structs.ids import MAX_INDEX, EntityId, EntityType
from mama_structs.structs.scheme import STRUCTS_SCHEME
from mama_structs.testing import World, strategies


def parsed(text):
    try:
        return str(EntityId.parse(text).type)
    except InvalidArgument:
        return None


NEAR_ENTITY_IDS = st.from_regex(r"\A[0-9]{0,3}-?[0-9]{0,22}\n?\Z") | st.integers(MAX_INDEX - 20, MAX_INDEX + 20).map(
    "1-{}".format
)


@given(strategies.entity_id_texts() | strategies.look_alikes() | NEAR_ENTITY_IDS | st.text())
@settings(max_examples=1000)
def test_pattern_and_parser_accept_the_same_texts(text):
    assert parsed(text) == STRUCTS_SCHEME.match(text)


@pytest.mark.parametrize(
    "index",
    [1, 9, 10, MAX_INDEX, *(10**digits - 1 for digits in range(1, 20)), *(10**digits for digits in range(1, 20))],
)
def test_pattern_accepts_indexes_of_every_length(index):
    """The largest index has twenty digits."""
    assert "player" == STRUCTS_SCHEME.match(f"1-{index}")
    assert None is STRUCTS_SCHEME.match(f"1-{index + MAX_INDEX}")
    assert None is STRUCTS_SCHEME.match(f"1-0{index}")


@pytest.mark.parametrize("place", range(20))
def test_pattern_rejects_indexes_above_maximum_in_any_digit(place):
    digits = str(MAX_INDEX)
    digit = int(digits[place])
    if digit < 9:
        more = f"{digits[:place]}{digit + 1}{digits[place + 1 :]}"
        assert None is STRUCTS_SCHEME.match(f"5-{more}")
    if digit > (0 if place else 1):
        less = f"{digits[:place]}{digit - 1}{digits[place + 1 :]}"
        assert "struct" == STRUCTS_SCHEME.match(f"5-{less}")


def test_type_names_are_plain_text():
    """Any JSON encoder accepts them."""
    names = list(STRUCTS_SCHEME.type_of.values())

    assert [str] * 12 == [type(name) for name in names]
    assert set(EntityType) == set(names) == STRUCTS_SCHEME.types
    assert {"infusion", "address"} == STRUCTS_SCHEME.unresolvable


def test_hints_name_types_with_ids():
    promised = frozenset().union(*STRUCTS_SCHEME.hints.values())

    assert promised <= STRUCTS_SCHEME.types - STRUCTS_SCHEME.unresolvable


def test_field_rules_cover_camel_case_and_snake_case():
    """The chain uses camelCase, the guild API snake_case."""

    def snake(name):
        return re.sub("(?<=[a-z])([A-Z])", r"_\1", name).lower()

    for names in (STRUCTS_SCHEME.primary, STRUCTS_SCHEME.deny, frozenset(STRUCTS_SCHEME.bare)):
        assert {snake(name) for name in names} <= names
    for name, types in STRUCTS_SCHEME.hints.items():
        if not name.startswith("*"):
            assert types == STRUCTS_SCHEME.hints[snake(name)]


@pytest.mark.parametrize(
    ("field", "types"),
    [
        ("guildId", {"guild"}), ("attackerStructId", {"struct"}), ("attacker_struct_id", {"struct"}), ("targetPlayerId", {"player"}),
        ("target_player_id", {"player"}), ("StructId", {"struct"}), ("locationId", {"planet", "fleet"}), ("objectId", None),
        ("attackerStructLocationId", None), ("guildid", None), ("", None), ("*StructId", {"struct"}),
    ],
)  # fmt: skip
def test_expected_types_match_field_name_or_suffix(field, types):
    assert (None if types is None else frozenset(types)) == STRUCTS_SCHEME.expected_types(field)


@pytest.mark.parametrize("kind", [kind for kind in EntityType if kind.has_ids])
def test_brief_fields_exist_in_records(kind):
    world = World.generate(seed=1, players=40)
    record = world.envelope(world.ids(kind)[0])[kind.capitalize()]

    assert set(STRUCTS_SCHEME.brief_fields(kind)) <= record.keys()
    assert ("name" in record) == ("name" in STRUCTS_SCHEME.brief_fields(kind))
    assert ("owner" in record) == ("owner" in STRUCTS_SCHEME.brief_fields(kind))
