"""Strict and lossless conversion between JSON and models."""

import contextlib
import copy
import json
import typing
from decimal import Decimal
from pathlib import Path

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mama_structs.errors import InvalidArgument, MalformedResponse
from mama_structs.structs import (
    Address,
    Answer,
    EntityPage,
    Fleet,
    FleetStatus,
    GridAnswer,
    Guild,
    Infusion,
    Planet,
    PlanetAnswer,
    PlanetStatus,
    Player,
    PlayerAnswer,
    Provider,
    Reactor,
    Struct,
    StructAnswer,
    StructsModel,
    StructType,
    answers,
    entities,
)
from mama_structs.structs.answers import AddressAnswer, ErrorBody
from mama_structs.structs.chain_json import NUMBER_KEY, get_wire_name, is_on_wire, structure, unstructure
from mama_structs.structs.entities import (
    AttributeRecord,
    Coin,
    GridAttributes,
    GridRecord,
    GuildRankPermissionRecord,
    PermissionRecord,
)
from mama_structs.structs.ids import EntityId, EntityType

DATA = Path(__file__).parent.parent / "data" / "structs"
FILES = {
    "lcd_captured/fleet_rows_trimmed.json": list[Fleet],
    "lcd_captured/grid_records.json": list[GridRecord],
    "lcd_captured/permission_by_player_page.json": EntityPage[PermissionRecord],
    "lcd_captured/planet_attribute_records.json": list[AttributeRecord],
    "lcd_captured/planet_rows_trimmed.json": list[Planet],
    "lcd_captured/player_rows_trimmed.json": list[Player],
    "lcd_captured/struct_5-1.json": StructAnswer,
    "lcd_captured/struct_attribute_records.json": list[AttributeRecord],
    "lcd_captured/struct_rows.json": list[Struct],
    "lcd_docs/address.json": AddressAnswer,
    "lcd_docs/error_object_not_found.json": ErrorBody,
    "lcd_docs/guild_0-1.json": Answer[Guild],
    "lcd_docs/guild_rank_permission_by_object.json": EntityPage[GuildRankPermissionRecord],
    "lcd_docs/infusion_record_partial.json": Infusion,
    "lcd_docs/planet_2-1.json": PlanetAnswer,
    "lcd_docs/player_1-11.json": PlayerAnswer,
    "lcd_docs/player_list_empty.json": EntityPage[Player],
    "lcd_docs/reactor_3-1.json": GridAnswer[Reactor],
}
RECORD_CLASSES = {
    model
    for module in (entities, answers)
    for model in vars(module).values()
    if isinstance(model, type) and issubclass(model, StructsModel) and not vars(model).get("__parameters__")
} - {StructsModel}
ANSWERED = ["Guild", "Infusion", "Fleet", "Agreement", "StructType", "GuildMembershipApplication", "GridRecord"]
ON_GRID = ["Reactor", "Substation", "Allocation", "Provider"]
LISTED = [
    *ANSWERED,
    *ON_GRID,
    *["Player", "Planet", "Struct", "Address", "StructAttributeRecord", "PlanetAttributeRecord"],
]
LISTED += ["PermissionRecord", "GuildRankPermissionRecord", "InternalAddressAssociation"]
PARAMETRISED = {
    answer[getattr(entities, name)]
    for answer, names in ((Answer, ANSWERED), (GridAnswer, ON_GRID), (EntityPage, LISTED))
    for name in names
}
RECORDS = sorted(RECORD_CLASSES | PARAMETRISED, key=lambda model: model.__name__)


def payload_of(name):
    path = DATA / name
    if not path.exists():
        pytest.skip(f"{path} is not there: the tests run without their data")
    return json.loads(path.read_text(encoding="utf-8"))


# --- files -----------------------------------------------------------------------------------------------------------


def test_every_data_file_is_tested():
    present = {f"{path.parent.name}/{path.name}" for path in DATA.glob("lcd_*/*.json")}
    if not present:
        pytest.skip("the tests run without their data")

    assert FILES.keys() == present


@pytest.mark.parametrize("name", FILES)
def test_captured_and_documented_answers_round_trip(name):
    """Unknown fields, and the difference between absent and zero, are preserved."""
    payload = payload_of(name)

    assert payload == unstructure(structure(payload, FILES[name]))


def test_answer_has_typed_values():
    answer = structure(payload_of("lcd_captured/struct_5-1.json"), StructAnswer)

    assert EntityId.parse("1-2") == answer.entity.owner
    assert EntityType.FLEET is answer.entity.location_type
    assert (1, True, ()) == (answer.entity.type, answer.struct_attributes.is_built, answer.struct_defenders)
    assert answer.height is None


def test_absent_fields_are_recorded():
    """A missing number is 0 and listed in `missing_fields`."""
    player = structure({"id": "1-1", "index": "0"}, Player)

    assert (0, 0) == (player.index, player.guild_rank)
    assert "guild_rank" in player.missing_fields
    assert "index" not in player.missing_fields


def test_unknown_fields_are_kept_in_extra():
    guild = structure(payload_of("lcd_docs/guild_0-1.json"), Answer[Guild]).entity

    assert {"entryInfusion": "0"} == guild.extra


def test_unknown_enum_name_remains_text():
    fleet = structure({"id": "9-1", "status": "docked"}, Fleet)

    assert "docked" == fleet.status
    assert not isinstance(fleet.status, FleetStatus)


def test_known_enum_name_is_member_and_written_as_str():
    planet = structure({"id": "2-1", "status": "complete"}, Planet)

    assert PlanetStatus.COMPLETE is planet.status
    assert str is type(unstructure(planet)["status"])


@pytest.mark.parametrize("null", ["", "1-0", "0-0", "11-0"])
def test_null_id_is_none_and_written_unchanged(null):
    """Both the null player 1-0 and the empty text are read as None."""
    address = structure({"address": "a", "playerId": null, "permissions": "0"}, Address)

    assert address.player_id is None
    assert null == unstructure(address)["playerId"]


def test_null_ids_in_slots_are_none_and_written_unchanged():
    planet = structure({"id": "2-1", "space": ["5-1", "5-0", ""]}, Planet)

    assert (EntityId.parse("5-1"), None, None) == planet.space
    assert ["5-1", "5-0", ""] == unstructure(planet)["space"]


def test_changed_copy_is_written_with_new_values():
    """The original text applies only while the value is unchanged."""
    address = structure({"playerId": "1-0"}, Address)
    changed = attrs.evolve(address, player_id=EntityId.parse("1-2"), permissions=3)

    assert {"playerId": "1-2", "permissions": "3"} == unstructure(changed)


def test_record_created_in_code_is_written_with_all_fields():
    written = unstructure(Address(address="structs1abc"))

    assert {"address": "structs1abc", "playerId": "", "permissions": "0"} == written


@pytest.mark.parametrize("model", RECORDS, ids=lambda model: model.__name__)
def test_record_created_in_code_round_trips(model):
    entity = typing.get_type_hints(model).get("entity")
    fields = {"id": EntityId.parse("1-1")} if "id" in attrs.fields_dict(model) else {}
    fields = {"id": 1} if model is StructType else fields
    if entity is not None:
        inner = {"id": EntityId.parse("1-1")} if "id" in attrs.fields_dict(entity) else {}
        fields = {"entity": entity(**({"id": 1} if entity is StructType else inner))}
    record = model(**fields)

    assert record == structure(unstructure(record), model)
    assert json.loads(json.dumps(unstructure(record))) == unstructure(record)


def test_zero_decimal_is_written_without_exponent():
    """Python writes a zero with 18 places as 0E-18."""
    infusion = structure({"commission": "0.000000000000000000"}, Infusion)

    assert Decimal(0) == infusion.commission
    assert "0.000000000000000000" == unstructure(infusion)["commission"]


def test_token_amount_may_exceed_64_bits():
    """Amounts have up to 256 bits, all other numbers 64."""
    coin = {"denom": "ualpha", "amount": str(2**200)}

    assert 2**200 == structure(coin, Coin).amount
    assert coin == unstructure(structure(coin, Coin))


def test_text_with_json_remains_text():
    text = '{"a": [1]}'

    assert text == structure({"id": "1-1", "pfpClientRenderAttributes": text}, Player).pfp_client_render_attributes


def test_reference_of_other_type_is_accepted():
    """The documentation has a fleet 11-11. Field types are not validated here."""
    assert EntityId.parse("11-11") == structure({"id": "1-11", "fleetId": "11-11"}, Player).fleet_id


def test_record_does_not_share_data_with_payload_or_output():
    payload = {"id": "0-1", "new": {"list": [1]}}
    guild = structure(payload, Guild)
    payload["new"]["list"].append(2)
    unstructure(guild)["new"]["list"].append(3)

    assert {"new": {"list": [1]}} == guild.extra


def test_null_object_is_none_and_differs_from_absent():
    """The chain writes a missing message as null."""
    null = {"Player": {"id": "1-1"}, "gridAttributes": None}
    answer = structure(null, PlayerAnswer)

    assert answer.grid_attributes is None
    assert frozenset({"player_inventory"}) == answer.missing_fields
    assert null == unstructure(answer)


# --- strictness: cattrs alone would accept each of these --------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "model", "path"),
    [
        pytest.param({"id": "1-1", "name": None}, Player, "$.name", id="null as text"),
        pytest.param({"id": "1-1", "name": 5}, Player, "$.name", id="number as text"),
        pytest.param({"isBuilt": "false"}, entities.StructAttributes, "$.isBuilt", id="text as bool"),
        pytest.param({"isBuilt": 1}, entities.StructAttributes, "$.isBuilt", id="number as bool"),
        pytest.param({"isBuilt": None}, entities.StructAttributes, "$.isBuilt", id="null as bool"),
        pytest.param({"ore": 1.9}, GridAttributes, "$.ore", id="fraction as number"),
        pytest.param({"ore": 1}, GridAttributes, "$.ore", id="JSON number"),
        pytest.param({"ore": True}, GridAttributes, "$.ore", id="bool as number"),
        pytest.param({"ore": None}, GridAttributes, "$.ore", id="null as number"),
        pytest.param({"ore": ""}, GridAttributes, "$.ore", id="empty number"),
        pytest.param({"ore": "-1"}, GridAttributes, "$.ore", id="negative"),
        pytest.param({"ore": "+1"}, GridAttributes, "$.ore", id="sign"),
        pytest.param({"ore": "01"}, GridAttributes, "$.ore", id="leading zero"),
        pytest.param({"ore": " 1"}, GridAttributes, "$.ore", id="space"),
        pytest.param({"ore": "1\n"}, GridAttributes, "$.ore", id="line end"),
        pytest.param({"ore": "1_0"}, GridAttributes, "$.ore", id="underscore"),
        pytest.param({"ore": "\u0661"}, GridAttributes, "$.ore", id="digits of another script"),
        pytest.param({"ore": str(2**64)}, GridAttributes, "$.ore", id="65 bits"),
        pytest.param({"ore": "9" * 5000}, GridAttributes, "$.ore", id="more digits than int() takes"),
        pytest.param({"amount": str(2**256)}, Coin, "$.amount", id="257 bits"),
        pytest.param({"commission": "NaN"}, Infusion, "$.commission", id="NaN"),
        pytest.param({"commission": "1e3"}, Infusion, "$.commission", id="exponent"),
        pytest.param({"commission": 0.5}, Infusion, "$.commission", id="float"),
        pytest.param({"id": "2-1", "space": "5-1"}, Planet, "$.space", id="text as array"),
        pytest.param({"id": "2-1", "space": {"0": "5-1"}}, Planet, "$.space", id="object as array"),
        pytest.param({"id": "2-1", "space": ["", 5]}, Planet, "$.space[1]", id="number as id"),
        pytest.param({"id": "2-1", "owner": None}, Planet, "$.owner", id="null as reference"),
        pytest.param({"id": "2-1", "owner": "1-01"}, Planet, "$.owner", id="id with leading zero"),
        pytest.param({"id": "2-1", "owner": "12-0"}, Planet, "$.owner", id="null id of no type"),
        pytest.param({"id": "2-1", "owner": "12-1"}, Planet, "$.owner", id="id of no type"),
        pytest.param({"id": "2-0"}, Planet, "$.id", id="null id as own id"),
        pytest.param({"id": ""}, Planet, "$.id", id="empty own id"),
        pytest.param({"id": 5}, Planet, "$.id", id="number as own id"),
        pytest.param({}, Planet, "$.id", id="no own id"),
        pytest.param({"id": "2-1", "status": 0}, Planet, "$.status", id="number as enum"),
        pytest.param({"id": "2-1", "status": None}, Planet, "$.status", id="null as enum"),
        pytest.param({"id": "10-1", "rate": None}, Provider, "$.rate", id="null as coin"),
        pytest.param({"id": "10-1", "rate": {"amount": 5}}, Provider, "$.rate.amount", id="inside a block"),
        pytest.param({"code": "2"}, ErrorBody, "$.code", id="text as code"),
        pytest.param({"code": True}, ErrorBody, "$.code", id="bool as code"),
        pytest.param({"Player": {"id": "1-1", "guildId": 7}}, PlayerAnswer, "$.Player.guildId", id="in an answer"),
        pytest.param({"Player": None}, PlayerAnswer, "$.Player", id="null entity"),
        pytest.param({}, PlayerAnswer, "$.Player", id="no entity"),
        pytest.param({"player": {"id": "1-1"}}, PlayerAnswer, "$.Player", id="lower-case envelope"),
        pytest.param({"Planet": [{"id": "2-1"}] * 3 + [{"id": "2-1", "space": [5]}]}, EntityPage[Planet],
                     "$.Planet[3].space[0]", id="in a page"),
        pytest.param({"Planet": {}}, EntityPage[Planet], "$.Planet", id="object as rows"),
        pytest.param([{"id": "5-1"}, []], list[Struct], "$[1]", id="array as row"),
        pytest.param("abc", list[Struct], "$", id="text as rows"),
        pytest.param([], Player, "$", id="array as record"),
        pytest.param({1: "a"}, list[Player], "$", id="object as rows at the root"),
        pytest.param({"id": "1-1", "name": object()}, Player, "$.name", id="no JSON"),
    ],
)  # fmt: skip
def test_wrong_type_is_malformed_with_path(payload, model, path):
    with pytest.raises(MalformedResponse) as caught:
        structure(payload, model)

    assert path == caught.value.path
    assert str(caught.value).startswith(f"{path}: ")


def test_malformed_error_names_expected_type_and_truncates_value():
    with pytest.raises(MalformedResponse, match=r"^\$\.ore: must be a uint64 as decimal text, got the text") as caught:
        structure({"ore": "x" * 10_000}, GridAttributes)

    assert len(str(caught.value)) < 150


@pytest.mark.parametrize(
    "model", [float, bytes, dict[str, str], Answer, EntityPage, GridAnswer, set[str], typing.Literal["a"]]
)
def test_structure_rejects_unsupported_type(model):
    """The default hooks of cattrs would coerce values."""
    with pytest.raises(InvalidArgument):
        structure("1", model)


@pytest.mark.parametrize("value", [object(), {"a": 1}, 1.5])
def test_unstructure_rejects_unsupported_value(value):
    for nothing in (b"x", bytearray(b"x"), 1.5, None, {}, {"a": 1}, [b"x"], object()):
        with pytest.raises(InvalidArgument, match="no rule"):
            unstructure(nothing)
    with pytest.raises(InvalidArgument):
        unstructure(value)


def test_invalid_wire_names_is_rejected():
    with pytest.raises(InvalidArgument, match="wire_names"):
        unstructure(Address(wire_names={"player_id": 5}))


def test_scalars_enums_and_any_can_be_converted_alone():
    assert 7 == structure("7", int)
    assert PlanetStatus.ACTIVE is structure("active", PlanetStatus)
    assert {"a": [1]} == structure({"a": [1]}, typing.Any)
    assert "active" == unstructure(PlanetStatus.ACTIVE)
    with pytest.raises(MalformedResponse):
        structure("docked", PlanetStatus)


# --- properties ------------------------------------------------------------------------------------------------------

INDEXES = st.integers(1, 2**64 - 1)
IDS = st.builds(lambda kind, index: f"{kind.code}-{index}", st.sampled_from(list(EntityType)), INDEXES)
REFERENCES = st.one_of(IDS, st.just(""), st.builds("{}-0".format, st.integers(0, 11)))
TEXT = st.text(max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)
SCALARS = {
    str: TEXT,
    bool: st.booleans(),
    int: st.integers(0, 2**64 - 1).map(str),
    EntityId: IDS,
    Decimal: st.decimals(-100, 100, places=18).map(lambda number: format(number, "f")),
    typing.Any: JSON,
}


def values(hint, attribute):
    """Return a strategy for the JSON values of *attribute*, a field with the type hint *hint*."""
    if NUMBER_KEY in attribute.metadata:
        return {"uint256": st.integers(0, 2**256 - 1).map(str), "json": st.integers()}[attribute.metadata[NUMBER_KEY]]
    arguments = typing.get_args(hint)
    if hint == (EntityId | None):
        return REFERENCES
    if type(None) in arguments:
        return st.none() | values(arguments[0], attribute)
    if arguments and typing.get_origin(hint) is tuple:
        return st.lists(values(arguments[0], attribute), max_size=4)
    if str in arguments:
        return st.sampled_from([member.value for member in arguments[0]]) | TEXT
    return payloads(hint) if isinstance(hint, type) and issubclass(hint, StructsModel) else SCALARS[hint]


def payloads(model):
    """Return a strategy for JSON objects of a model, with absent and unknown fields."""
    hints = typing.get_type_hints(model)
    required, optional = {}, {}
    for attribute in filter(is_on_wire, attrs.fields(model)):
        needed = attribute.default is attrs.NOTHING
        (required if needed else optional)[get_wire_name(attribute)] = values(hints[attribute.name], attribute)
    known = st.fixed_dictionaries(required, optional=optional)
    unknown = st.dictionaries(TEXT.filter(lambda name: name not in {**required, **optional}), JSON, max_size=2)
    return st.builds(lambda one, other: {**other, **one}, known, unknown)


@pytest.mark.once
@pytest.mark.parametrize("model", RECORDS, ids=lambda model: model.__name__)
def test_generated_payload_round_trips_unchanged(model):
    @settings(max_examples=25)
    @given(payload=payloads(model))
    def nothing_is_lost(payload):
        before = copy.deepcopy(payload)
        record = structure(payload, model)

        assert before == payload
        assert payload == unstructure(record)
        assert record == structure(unstructure(record), model)
        assert hash(record) == hash(structure(payload, model))

    nothing_is_lost()


@given(payload=JSON)
def test_structure_of_any_json_returns_record_or_raises_malformed(payload):
    for model in (PlayerAnswer, list[Planet], StructType):
        with contextlib.suppress(MalformedResponse):
            structure(payload, model)
