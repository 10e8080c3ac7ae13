"""The chain's scheme, read beside the parser of ids."""

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


NEAR = st.from_regex(r"\A[0-9]{0,3}-?[0-9]{0,22}\n?\Z") | st.integers(MAX_INDEX - 20, MAX_INDEX + 20).map("1-{}".format)


@given(strategies.entity_id_texts() | strategies.look_alikes() | NEAR | st.text())
@settings(max_examples=1000)
def test_the_pattern_and_the_parser_agree(text):
    """The scheme's pattern accepts exactly the texts that the parser reads, and names the same type."""
    assert parsed(text) == STRUCTS_SCHEME.match(text)


@pytest.mark.parametrize(
    "index",
    [1, 9, 10, MAX_INDEX, *(10**digits - 1 for digits in range(1, 20)), *(10**digits for digits in range(1, 20))],
)
def test_every_number_of_digits_is_right(index):
    """The largest index has twenty digits, and the pattern counts as a number would."""
    assert "player" == STRUCTS_SCHEME.match(f"1-{index}")
    assert None is STRUCTS_SCHEME.match(f"1-{index + MAX_INDEX}")
    assert None is STRUCTS_SCHEME.match(f"1-0{index}")


@pytest.mark.parametrize("place", range(20))
def test_each_digit_of_the_bound_counts(place):
    """One more in any digit of the largest index is too large; one less is not."""
    digits = str(MAX_INDEX)
    digit = int(digits[place])
    if digit < 9:
        more = f"{digits[:place]}{digit + 1}{digits[place + 1 :]}"
        assert None is STRUCTS_SCHEME.match(f"5-{more}")
    if digit > (0 if place else 1):
        less = f"{digits[:place]}{digit - 1}{digits[place + 1 :]}"
        assert "struct" == STRUCTS_SCHEME.match(f"5-{less}")


def test_types_are_plain_names():
    """Names in answers are plain text, so that any writer of JSON takes them."""
    names = list(STRUCTS_SCHEME.type_of.values())

    assert [str] * 12 == [type(name) for name in names]
    assert set(EntityType) == set(names) == STRUCTS_SCHEME.types
    assert {"infusion", "address"} == STRUCTS_SCHEME.unresolvable


def test_every_rule_names_known_types():
    """No hint promises a type that does not exist, or one that has no ids."""
    promised = frozenset().union(*STRUCTS_SCHEME.hints.values())

    assert promised <= STRUCTS_SCHEME.types - STRUCTS_SCHEME.unresolvable


def test_both_spellings_mean_the_same():
    """What the chain writes in camel case the guild API writes in snake case: every rule holds for both."""

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
def test_a_fields_name_may_promise_types(field, types):
    """Promises are by whole name, or by its ending."""
    assert (None if types is None else frozenset(types)) == STRUCTS_SCHEME.expected(field)


@pytest.mark.parametrize("kind", [kind for kind in EntityType if kind.has_ids])
def test_the_brief_fields_of_a_type_are_its_records(kind):
    """What a reader needs first of each type are fields that a node's answer for it has."""
    world = World.generate(seed=1, players=40)
    record = world.envelope(world.ids(kind)[0])[kind.capitalize()]

    assert set(STRUCTS_SCHEME.brief_of(kind)) <= record.keys()
    assert ("name" in record) == ("name" in STRUCTS_SCHEME.brief_of(kind))
    assert ("owner" in record) == ("owner" in STRUCTS_SCHEME.brief_of(kind))
