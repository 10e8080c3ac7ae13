"""The models: names, defaults, immutability."""

import ast
import copy
import enum
import importlib
import json
import pickle
import typing
from decimal import Decimal
from pathlib import Path

import attrs
import pytest
from row_helpers import every_row

from mama_structs import structs
from mama_structs._internal.lazy_import import homes
from mama_structs.structs import (
    Address,
    Answer,
    Fleet,
    FleetStatus,
    GridAnswer,
    Guild,
    Page,
    Provider,
    Reactor,
    Record,
    StructType,
    answers,
    entities,
    enums,
)
from mama_structs.structs.answers import AddressAnswer, Envelope, Pagination
from mama_structs.structs.entities import Coin, GuildRankPermissionRecord, StructAttributes
from mama_structs.structs.ids import EntityId, EntityType
from mama_structs.structs.record import is_on_wire, wire_name

RECORDS = [
    value
    for module in (entities, answers)
    for value in vars(module).values()
    if isinstance(value, type) and issubclass(value, Record)
]
RECORDS += [Answer[Guild], GridAnswer[Reactor], Page[Guild]]


def wire_names(model):
    return [wire_name(attribute) for attribute in attrs.fields(model) if is_on_wire(attribute)]


@every_row("model", RECORDS)
def test_type_hints_of_every_model_can_be_read(model):
    """Annotations are evaluated by tools: nothing in them is imported for type checkers only."""
    hints = typing.get_type_hints(model)

    assert {"extra", "absent", "as_written"} <= hints.keys()
    assert hints.keys() - {"return"} >= {attribute.name for attribute in attrs.fields(model)}


@every_row("model", RECORDS)
def test_models_are_frozen_and_keyword_only(model):
    """A record is a value, and no order of fields is part of its interface."""
    assert all(attribute.kw_only for attribute in attrs.fields(model))
    assert model.__setattr__ is not object.__setattr__


def test_struct_type_has_every_field_of_the_chain():
    """68 fields of v0.16.0 and the two that came later."""
    names = wire_names(StructType)

    assert 70 == len(names) == len(set(names))
    assert {"class", "classAbbreviation", "primaryWeaponArmourPiercing", "powerGeneration"} <= set(names)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (structs.Infusion, "destinationType destinationId fuel power commission playerId address ratio defusing"),
        (Pagination, "next_key total"),
        (Page[GuildRankPermissionRecord], "guild_rank_permission_records pagination"),
        (structs.StructAnswer, "Struct gridAttributes structAttributes structDefenders"),
    ],
)  # fmt: skip
def test_wire_names_are_derived_or_given(model, expected):
    """CamelCase where nothing else is said, the chain's own spelling where it breaks its rule."""
    assert set(expected.split()) == set(wire_names(model))


@every_row("model", RECORDS)
def test_defaults_of_enums_are_the_first_names(model):
    """An empty record shows number 0 of an enum, which is its first member."""
    for attribute in attrs.fields(model):
        if isinstance(attribute.default, enum.Enum):
            assert next(iter(type(attribute.default))) is attribute.default


@pytest.mark.parametrize(
    ("names", "count"), [(enums.GridAttribute, 15), (enums.StructAttribute, 7), (enums.PlanetAttribute, 16)]
)
def test_attribute_enums_name_the_fields_of_their_blocks(names, count):
    """The names that single attributes are read by are those of the blocks."""
    block = {"GridAttribute": "GridAttributes", "StructAttribute": "StructAttributes"}.get(
        names.__name__, "PlanetAttributes"
    )

    assert count == len(names)
    assert {member.value for member in names} <= set(wire_names(getattr(entities, block)))


def test_repr_shows_what_differs_from_zero_and_can_be_pasted_back():
    """Most fields of most records are zero; those would hide the others."""
    fleet = Fleet(
        id=EntityId.parse("9-1"), status=FleetStatus.AWAY, space=(None, EntityId.parse("5-2")), extra={"new": 1}
    )

    assert (
        "Fleet(id=EntityId.parse('9-1'), status='away', space=(None, EntityId.parse('5-2')), extra={'new': 1})"
        == repr(fleet)
    )
    assert fleet == eval(repr(fleet))


def test_repr_of_absent_names_is_sorted():
    """A repr does not change from run to run."""
    assert "Coin(absent=frozenset(['amount', 'denom']))" == repr(Coin(absent=frozenset({"denom", "amount"})))


def test_unknown_fields_count_in_equality_and_not_in_hashes():
    """Records can be members of sets, although what is unknown may be of any type."""
    plain, other = Coin(denom="ualpha"), Coin(denom="ualpha", extra={"list": []})

    assert plain != other
    assert {plain, other} == {other, plain}
    assert hash(plain) == hash(other)


def test_heights_do_not_count_in_equality():
    """The height says when an answer was read, not what it says."""
    assert AddressAnswer(address="a", height=1) == AddressAnswer(address="a", height=2)


def test_the_flat_answer_is_its_own_entity():
    """`entity` works on every answer."""
    answer = AddressAnswer(address="a")

    assert answer is answer.entity
    assert isinstance(answer.entity, Address)


def test_protected_struct_is_the_id_of_the_bare_index():
    """The chain names the protected struct by its bare index, with 0 for none."""
    assert EntityId(EntityType.STRUCT, 2184) == StructAttributes(protected_struct_index=2184).protected_struct
    assert None is StructAttributes().protected_struct


def test_defaults_are_the_zero_of_their_type():
    """A missing number counts as 0, a missing reference as none."""
    provider = Provider(id=EntityId.parse("10-1"))

    assert (0, None, Coin(), Decimal(0), "openMarket", "") == (
        provider.index,
        provider.owner,
        provider.rate,
        provider.provider_cancellation_penalty,
        provider.access_policy,
        provider.creator,
    )


def test_only_records_with_an_id_demand_one():
    """Everything else may be absent."""
    for model in RECORDS:
        required = {
            attribute.name
            for attribute in attrs.fields(model)
            if attribute.default is attrs.NOTHING and is_on_wire(attribute)
        }

        assert required <= {"id", "entity"}


def test_the_door_lists_what_it_has():
    """Type checkers, the loader and `__all__` agree on the public names, and each loads from its home."""
    tree = ast.parse(Path(structs.__file__).read_text())
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {alias.asname: node.module for node in guarded.body for alias in node.names if alias.asname == alias.name}

    sources = homes("mama_structs.structs", structs._NAMES)
    assert sources == typed
    assert sorted(sources) == structs.__all__ == dir(structs)
    for name, home in sources.items():
        assert getattr(structs, name) is getattr(importlib.import_module(home), name)


def test_an_answer_of_a_record_is_one_class():
    """`Answer[Guild]` is the same class each time, its name can be pasted back, and it keeps to what it answers."""
    answer = Answer[Guild](entity=Guild(id=EntityId.parse("0-1")), height=3)

    assert Answer[Guild] is type(answer)
    assert answer == eval(repr(answer))
    assert isinstance(answer, Answer)
    assert not isinstance(answer, Page)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_answers_and_pages_are_copied_whole(copied):
    """Although no module has the class of `Answer[Guild]`."""
    answer = Answer[Guild](entity=Guild(id=EntityId.parse("0-1")), height=3)
    player = structs.PlayerAnswer(entity=structs.Player(id=EntityId.parse("1-1")), extra={"new": 1})
    page = Page[Guild](records=(answer.entity,), pagination=Pagination(next_key="a"))

    for one in (answer, player, page):
        assert one == copied(one)
        assert type(one) is type(copied(one))
        assert one.height == copied(one).height


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_envelopes_are_copied_with_their_height(copied):
    """A raw answer is a dictionary that knows when it was read."""
    envelope = copied(Envelope({"Player": {}}, height=7))

    assert {"Player": {}} == envelope
    assert 7 == envelope.height
    assert '{"Player": {}}' == json.dumps(envelope)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_records_are_copied_whole(copied):
    """With what is unknown in them."""
    player = structs.Player(id=EntityId.parse("1-1"), extra={"new": [1]}, absent=frozenset({"name"}))

    assert player == copied(player)
    assert {"new": [1]} == copied(player).extra
    assert hash(player) == hash(copied(player))


@pytest.mark.parametrize("name", ["extra", "as_written"])
def test_the_mappings_of_a_record_cannot_be_changed(name):
    """A record is a value to its last field, also where it was copied or given a dictionary that changes later."""
    given = {"guild_id": "0-0"}
    player = structs.Player(id=EntityId.parse("1-1"), **{name: given})
    given["later"] = 1

    for record in (player, copy.deepcopy(player), attrs.evolve(player, name="Ada"), structs.Player(id=player.id)):
        with pytest.raises(TypeError):
            getattr(record, name)["new"] = 1
    assert {"guild_id": "0-0"} == getattr(player, name)
    assert f"{name}={{'guild_id': '0-0'}}" in repr(player)


def test_copies_share_no_json():
    """A deep copy has its own unknown fields."""
    player = structs.Player(id=EntityId.parse("1-1"), extra={"new": [1]})
    copy.deepcopy(player).extra["new"].append(2)

    assert {"new": [1]} == player.extra
