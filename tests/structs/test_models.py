"""The models of chain entities: field names, default values and immutability."""

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
from mama_structs.structs import (
    Address,
    Answer,
    EntityPage,
    Fleet,
    FleetStatus,
    GridAnswer,
    Guild,
    Provider,
    Reactor,
    StructsModel,
    StructType,
    answers,
    entities,
    enums,
)
from mama_structs.structs.answers import AddressAnswer, Pagination, RawAnswer
from mama_structs.structs.chain_json import get_wire_name, is_on_wire
from mama_structs.structs.entities import Coin, GuildRankPermissionRecord, StructAttributes
from mama_structs.structs.ids import EntityId, EntityType

RECORDS = [
    value
    for module in (entities, answers)
    for value in vars(module).values()
    if isinstance(value, type) and issubclass(value, StructsModel)
]
RECORDS += [Answer[Guild], GridAnswer[Reactor], EntityPage[Guild]]


def wire_names(model):
    return [get_wire_name(attribute) for attribute in attrs.fields(model) if is_on_wire(attribute)]


@every_row("model", RECORDS)
def test_type_hints_of_every_model_resolve(model):
    """Tools evaluate annotations, so none may be imported for type checkers only."""
    hints = typing.get_type_hints(model)

    assert {"extra", "missing_fields", "wire_names"} <= hints.keys()
    assert hints.keys() - {"return"} >= {attribute.name for attribute in attrs.fields(model)}


@every_row("model", RECORDS)
def test_models_are_frozen_and_keyword_only(model):
    assert all(attribute.kw_only for attribute in attrs.fields(model))
    assert model.__setattr__ is not object.__setattr__


def test_struct_type_has_every_field_of_the_chain():
    """These are 68 fields of v0.16.0 and two later ones."""
    names = wire_names(StructType)

    assert 70 == len(names) == len(set(names))
    assert {"class", "classAbbreviation", "primaryWeaponArmourPiercing", "powerGeneration"} <= set(names)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (structs.Infusion, "destinationType destinationId fuel power commission playerId address ratio defusing"),
        (Pagination, "next_key total"),
        (EntityPage[GuildRankPermissionRecord], "guild_rank_permission_records pagination"),
        (structs.StructAnswer, "Struct gridAttributes structAttributes structDefenders"),
    ],
)  # fmt: skip
def test_wire_names_are_camel_case_or_overridden(model, expected):
    assert set(expected.split()) == set(wire_names(model))


@every_row("model", RECORDS)
def test_enum_defaults_are_first_members(model):
    """An empty record has number 0 of an enum, which is its first member."""
    for attribute in attrs.fields(model):
        if isinstance(attribute.default, enum.Enum):
            assert next(iter(type(attribute.default))) is attribute.default


@pytest.mark.parametrize(
    ("names", "count"), [(enums.GridAttribute, 15), (enums.StructAttribute, 7), (enums.PlanetAttribute, 16)]
)
def test_attribute_enums_name_the_fields_of_attribute_records(names, count):
    block = {"GridAttribute": "GridAttributes", "StructAttribute": "StructAttributes"}.get(
        names.__name__, "PlanetAttributes"
    )

    assert count == len(names)
    assert {member.value for member in names} <= set(wire_names(getattr(entities, block)))


def test_repr_shows_non_default_fields_and_evaluates_to_equal_record():
    fleet = Fleet(
        id=EntityId.parse("9-1"), status=FleetStatus.AWAY, space=(None, EntityId.parse("5-2")), extra={"new": 1}
    )

    assert (
        "Fleet(id=EntityId.parse('9-1'), status='away', space=(None, EntityId.parse('5-2')), extra={'new': 1})"
        == repr(fleet)
    )
    assert fleet == eval(repr(fleet))


def test_repr_of_absent_names_is_sorted():
    assert "Coin(missing_fields=frozenset(['amount', 'denom']))" == repr(
        Coin(missing_fields=frozenset({"denom", "amount"}))
    )


def test_extra_affects_equality_but_not_hash():
    """Extra fields may be unhashable, but records must be hashable."""
    plain, other = Coin(denom="ualpha"), Coin(denom="ualpha", extra={"list": []})

    assert plain != other
    assert {plain, other} == {other, plain}
    assert hash(plain) == hash(other)


def test_height_does_not_affect_equality():
    assert AddressAnswer(address="a", height=1) == AddressAnswer(address="a", height=2)


def test_flat_answer_is_its_own_entity():
    answer = AddressAnswer(address="a")

    assert answer is answer.entity
    assert isinstance(answer.entity, Address)


def test_protected_struct_is_id_of_bare_index():
    """The chain stores 0 for none."""
    assert EntityId(EntityType.STRUCT, 2184) == StructAttributes(protected_struct_index=2184).protected_struct
    assert None is StructAttributes().protected_struct


def test_defaults_are_zero_values_of_their_types():
    provider = Provider(id=EntityId.parse("10-1"))

    assert (0, None, Coin(), Decimal(0), "openMarket", "") == (
        provider.index,
        provider.owner,
        provider.rate,
        provider.provider_cancellation_penalty,
        provider.access_policy,
        provider.creator,
    )


def test_only_id_and_entity_are_required():
    for model in RECORDS:
        required = {
            attribute.name
            for attribute in attrs.fields(model)
            if attribute.default is attrs.NOTHING and is_on_wire(attribute)
        }

        assert required <= {"id", "entity"}


def test_public_names_match_lazy_loader_and_type_hints():
    tree = ast.parse(Path(structs.__file__).with_suffix(".pyi").read_text())
    sources = {
        alias.asname: f"mama_structs.structs.{node.module}"
        for node in tree.body
        for alias in node.names
        if alias.asname == alias.name
    }

    assert sorted(sources) == structs.__all__ == dir(structs)
    for name, home in sources.items():
        assert getattr(structs, name) is getattr(importlib.import_module(home), name)


def test_generic_answer_is_one_class_with_evaluable_repr():
    answer = Answer[Guild](entity=Guild(id=EntityId.parse("0-1")), height=3)

    assert Answer[Guild] is type(answer)
    assert answer == eval(repr(answer))
    assert isinstance(answer, Answer)
    assert not isinstance(answer, EntityPage)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_answers_and_pages_can_be_copied_and_pickled(copied):
    """No module has an attribute for the class of `Answer[Guild]`."""
    answer = Answer[Guild](entity=Guild(id=EntityId.parse("0-1")), height=3)
    player = structs.PlayerAnswer(entity=structs.Player(id=EntityId.parse("1-1")), extra={"new": 1})
    page = EntityPage[Guild](records=(answer.entity,), pagination=Pagination(next_key="a"))

    for one in (answer, player, page):
        assert one == copied(one)
        assert type(one) is type(copied(one))
        assert one.height == copied(one).height


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_envelopes_keep_height_when_copied_or_pickled(copied):
    envelope = copied(RawAnswer({"Player": {}}, height=7))

    assert {"Player": {}} == envelope
    assert 7 == envelope.height
    assert '{"Player": {}}' == json.dumps(envelope)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_records_can_be_copied_and_pickled_with_extra_fields(copied):
    player = structs.Player(id=EntityId.parse("1-1"), extra={"new": [1]}, missing_fields=frozenset({"name"}))

    assert player == copied(player)
    assert {"new": [1]} == copied(player).extra
    assert hash(player) == hash(copied(player))


@pytest.mark.parametrize("name", ["extra", "wire_names"])
def test_record_mappings_are_read_only(name):
    """Holds for copies, and if the passed dictionary changes later."""
    given = {"guild_id": "0-0"}
    player = structs.Player(id=EntityId.parse("1-1"), **{name: given})
    given["later"] = 1

    for record in (player, copy.deepcopy(player), attrs.evolve(player, name="Ada"), structs.Player(id=player.id)):
        with pytest.raises(TypeError):
            getattr(record, name)["new"] = 1
    assert {"guild_id": "0-0"} == getattr(player, name)
    assert f"{name}={{'guild_id': '0-0'}}" in repr(player)


def test_deep_copies_do_not_share_extra_fields():
    player = structs.Player(id=EntityId.parse("1-1"), extra={"new": [1]})
    copy.deepcopy(player).extra["new"].append(2)

    assert {"new": [1]} == player.extra
