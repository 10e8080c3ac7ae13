"""Entity ids, their types and their traps."""

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


def test_types_are_the_chains_in_its_order():
    """There are twelve types; each is its name, and has its code."""
    assert NAMES == list(EntityType)
    assert list(range(12)) == [member.code for member in EntityType]
    assert ["infusion", "address"] == [member for member in EntityType if not member.has_ids]


@pytest.mark.parametrize("member", EntityType, ids=str)
def test_a_type_is_its_name(member):
    """A type equals its name, is found by name and by code, and survives copies and JSON."""
    assert member is EntityType(str(member)) is EntityType.from_code(member.code) is EntityType[member.upper()]
    assert member is copy.deepcopy(member) is pickle.loads(pickle.dumps(member))
    assert json.dumps(str(member)) == json.dumps(member)
    assert (member.value, f"{member}") == (str(member), str(member))


@pytest.mark.parametrize("code", [-1, 12, 99, "1", None, 1.5, [], {}])
def test_other_codes_name_nothing(code):
    """There is no type beyond the twelve."""
    with pytest.raises(InvalidArgument, match="0 to 11"):
        EntityType.from_code(code)


@given(strategies.entity_ids())
def test_text_and_id_are_the_same_thing(entity_id):
    """An id is written as the chain writes it, and read back equal."""
    text = str(entity_id)

    assert f"{entity_id.type.code}-{entity_id.index}" == text == f"{entity_id}"
    assert entity_id == EntityId.parse(text) == eval(repr(entity_id)) == pickle.loads(pickle.dumps(entity_id))
    assert hash(entity_id) == hash(EntityId.parse(text))
    assert entity_id is EntityId.parse(entity_id)


@given(strategies.look_alikes())
def test_what_only_looks_like_an_id_is_refused(text):
    """No look-alike is read as an id."""
    with pytest.raises(InvalidArgument):
        EntityId.parse(text)


@pytest.mark.parametrize("text", [None, 111, 1.11, b"1-11", ["1-11"], ("1", "11"), object()])
def test_what_is_no_text_is_refused(text):
    """Only text is read, and the error shows what was given and how an id looks."""
    with pytest.raises(InvalidArgument, match="must look like 1-11") as caught:
        EntityId.parse(text)

    assert "without leading zeros" in caught.value.hint


def test_a_long_text_is_shown_in_part():
    """An error does not repeat a megabyte."""
    with pytest.raises(InvalidArgument) as caught:
        EntityId.parse("1-" + "1" * 10**6)

    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("text", ["7-1", "8-1", f"0-{MAX_INDEX}", "11-1"])
def test_every_code_can_be_written(text):
    """Infusions and addresses have codes too, so that who asks for them gets an answer."""
    assert text == str(EntityId.parse(text))


@given(st.integers().filter(lambda index: not 1 <= index <= MAX_INDEX) | st.sampled_from([None, True, False, 1.0, "1"]))
def test_an_index_outside_its_range_is_refused(index):
    """Indexes run from 1 to 2**64 - 1 and are whole numbers."""
    with pytest.raises(InvalidArgument, match="index"):
        EntityId(EntityType.PLAYER, index)


@pytest.mark.parametrize("kind", ["player", 1, None, EntityType])
def test_a_type_must_be_a_type(kind):
    """A name is not enough where the type itself is meant."""
    with pytest.raises(InvalidArgument, match="type"):
        EntityId(kind, 1)


@given(strategies.entity_ids(), strategies.entity_ids())
def test_ids_are_ordered_by_code_and_number(first, second):
    """Order is that of numbers, not of texts: 2-1 before 10-1, 1-2 before 1-10."""
    assert ((first.type.code, first.index) < (second.type.code, second.index)) is (first < second)
    assert (first <= second) is not (second < first)


def test_ids_are_values():
    """An id cannot be changed, and no text equals it."""
    entity_id = EntityId.parse("1-11")

    assert entity_id != "1-11"
    assert "EntityId.parse('1-11')" == repr(entity_id)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        entity_id.index = 5
