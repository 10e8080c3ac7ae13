"""Entity ids and types."""

import copy
import json
import pickle

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs.errors import InvalidArgument
from mama_structs.structs.ids import MAX_INDEX, EntityId, EntityType
from mama_structs.testing import strategies

NAMES = [
    "guild",
    "player",
    "planet",
    "reactor",
    "substation",
    "struct",
    "allocation",
    "infusion",
    "address",
    "fleet",
    "provider",
    "agreement",
]


def test_entity_types_have_names_and_codes_of_the_chain():
    assert NAMES == list(EntityType)
    assert list(range(12)) == [member.code for member in EntityType]
    assert ["infusion", "address"] == [member for member in EntityType if not member.has_ids]


@pytest.mark.parametrize("member", EntityType, ids=str)
def test_entity_type_equals_its_name_and_survives_copies(member):
    assert member is EntityType(str(member)) is EntityType.from_code(member.code) is EntityType[member.upper()]
    assert member is copy.deepcopy(member) is pickle.loads(pickle.dumps(member))
    assert json.dumps(str(member)) == json.dumps(member)
    assert (member.value, f"{member}") == (str(member), str(member))


@pytest.mark.parametrize("code", [-1, 12, 99, "1", None, 1.5, [], {}])
def test_from_code_rejects_unknown_code(code):
    with pytest.raises(InvalidArgument, match="0 to 11"):
        EntityType.from_code(code)


@given(strategies.entity_ids())
def test_entity_id_text_round_trips(entity_id):
    text = str(entity_id)

    assert f"{entity_id.type.code}-{entity_id.index}" == text == f"{entity_id}"
    assert entity_id == EntityId.parse(text) == eval(repr(entity_id)) == pickle.loads(pickle.dumps(entity_id))
    assert hash(entity_id) == hash(EntityId.parse(text))
    assert entity_id is EntityId.parse(entity_id)


@given(strategies.look_alikes())
def test_parse_rejects_look_alikes(text):
    with pytest.raises(InvalidArgument):
        EntityId.parse(text)


@pytest.mark.parametrize("text", [None, 111, 1.11, b"1-11", ["1-11"], ("1", "11"), object()])
def test_parse_rejects_other_types_with_hint(text):
    with pytest.raises(InvalidArgument, match="must look like 1-11") as caught:
        EntityId.parse(text)

    assert "without leading zeros" in caught.value.hint


def test_parse_error_truncates_long_text():
    with pytest.raises(InvalidArgument) as caught:
        EntityId.parse("1-" + "1" * 10**6)

    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("text", ["7-1", "8-1", f"0-{MAX_INDEX}", "11-1"])
def test_parse_accepts_every_type_code(text):
    """Infusions and addresses have codes, so that queries for them get a specific error."""
    assert text == str(EntityId.parse(text))


@given(st.integers().filter(lambda index: not 1 <= index <= MAX_INDEX) | st.sampled_from([None, True, False, 1.0, "1"]))
def test_entity_id_rejects_index_out_of_range(index):
    with pytest.raises(InvalidArgument, match="index"):
        EntityId(EntityType.PLAYER, index)


@pytest.mark.parametrize("kind", ["player", 1, None, EntityType])
def test_entity_id_rejects_type_that_is_not_an_entity_type(kind):
    with pytest.raises(InvalidArgument, match="type"):
        EntityId(kind, 1)


@given(strategies.entity_ids(), strategies.entity_ids())
def test_entity_ids_are_ordered_numerically(first, second):
    """For example, 2-1 precedes 10-1, and 1-2 precedes 1-10."""
    assert ((first.type.code, first.index) < (second.type.code, second.index)) is (first < second)
    assert (first <= second) is not (second < first)


def test_entity_id_is_immutable_and_differs_from_text():
    entity_id = EntityId.parse("1-11")

    assert entity_id != "1-11"
    assert "EntityId.parse('1-11')" == repr(entity_id)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        entity_id.index = 5
