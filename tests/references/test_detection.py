"""Detection of ids in payloads: positions, field rules, Python objects, hostile input."""

import collections
import dataclasses
import enum
import json
import logging
import re
import time
import types
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs
import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from row_helpers import every_row

from mama_structs.references.detection import IdDetector
from mama_structs.references.matches import format_json_pointer
from mama_structs.references.payload_shape import classify_payload
from mama_structs.structs.ids import MAX_INDEX, EntityId, EntityType
from mama_structs.structs.scheme import STRUCTS_SCHEME
from mama_structs.testing import strategies

DATA = Path(__file__).parents[1] / "data" / "structs"
DETECTOR = IdDetector([STRUCTS_SCHEME])


def scan(payload, **options):
    return DETECTOR.scan(payload, **options)


def places(payload, **options):
    """Return the id and the pointer of each match."""
    return [(found.id, found.pointer) for found in scan(payload, **options).matches]


def ids(payload, **options):
    return [found.id for found in scan(payload, **options).matches]


def look_up(payload, place):
    """Return the value at a JSON pointer (RFC 6901)."""
    for part in place.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        payload = payload[int(key)] if isinstance(payload, list) else payload[key]
    return payload


def nested(value, levels, wrap):
    for _ in range(levels):
        value = wrap(value)
    return value


def scan_of(planted):
    subject = None if planted.subject is None else str(planted.subject)
    shape = classify_payload(planted.payload, DETECTOR, subject=subject)
    return shape, DETECTOR.scan(planted.payload, rows=shape.rows, exclude=shape.own_ids)


def found_in(result):
    """Return the list of pointers of each found id, in the same format as the strategies."""
    found = {}
    for one in result.matches:
        found.setdefault(one.id, []).append(one.pointer)
    return found


# Payloads with planted ids


@given(strategies.payloads() | strategies.list_payloads())
@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_scan_finds_exactly_the_planted_references(planted):
    """The ids have all their pointers and are in document order."""
    result = scan_of(planted)[1]

    assert planted.ids == list(found_in(result))
    assert {str(one.id): list(one.pointers) for one in planted.references} == found_in(result)
    assert result.is_complete


@given(strategies.payloads() | strategies.list_payloads())
@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_pointers_lead_to_the_ids(planted):
    """The value is the id, its bare index, or the JSON text that contains it."""
    result = scan_of(planted)[1]

    for one in result.matches:
        value = look_up(planted.payload, one.pointer)
        if isinstance(value, str) and value.startswith("{"):
            assert one.id in value
        else:
            assert value in (one.id, one.id.removeprefix("5-"), int(one.id.partition("-")[2]))


@given(strategies.payloads() | strategies.list_payloads())
@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_scan_marks_planted_direct_relations_as_primary(planted):
    """An id is primary if one of its occurrences is a direct relation."""
    result = scan_of(planted)[1]

    assert {str(one.id) for one in planted.references if one.primary} == {
        one.id for one in result.matches if one.is_primary
    }


@given(strategies.payloads())
@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_scan_is_deterministic_and_does_not_change_payload(planted):
    """New and used detectors return the same for a payload and its copy."""
    before = json.dumps(planted.payload)
    copy = json.loads(before)
    results = [
        detector.scan(data) for data in (planted.payload, copy) for detector in (DETECTOR, IdDetector([STRUCTS_SCHEME]))
    ]

    assert before == json.dumps(planted.payload)
    assert all(found_in(results[0]) == found_in(result) for result in results)
    assert 1 == len({len(result.lookalikes) for result in results})


@given(strategies.list_payloads(min_size=1))
@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_row_of_match_equals_row_in_pointer(planted):
    shape, result = scan_of(planted)

    assert "list" == shape.kind
    for one in result.matches:
        assert one.row == int(one.pointer.split("/")[2])


@given(text=strategies.look_alikes())
@settings(max_examples=300)
def test_scan_ignores_look_alikes_in_any_field(text):
    result = scan({"owner": text, "anything": [text], "guildId": {"x": text}})

    assert [] == result.matches


@given(entity_id=strategies.entity_ids(), field=st.text())
@settings(max_examples=200)
def test_scan_finds_every_id_in_fields_without_rules(entity_id, field):
    result = scan({f"{field}!": str(entity_id)})

    assert [(str(entity_id), str(entity_id.type), f"{field}!")] == [
        (one.id, one.type, one.field) for one in result.matches
    ]


# Captured answers of a node


@pytest.mark.parametrize("file", sorted(DATA.glob("lcd_*/*.json")), ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_scan_finds_every_id_shaped_string_in_captured_answers(file):
    """
    In captured answers, every type-index string outside denied fields is an id.

    Only one string is rejected by a hint: a fleet id that is wrong in the documentation. Complete entities are no references.
    """
    wrong = {"player_1-11": ["11-11"]}.get(file.stem, [])
    payload = json.loads(file.read_text())
    naive, entities = [], []

    def walk(value, key):
        if isinstance(value, dict):
            entities.append(value.get("id"))
            for name, member in value.items():
                walk(member, name)
        elif isinstance(value, list):
            for member in value:
                walk(member, key)
        elif key == "protectedStructIndex":
            if value not in ("0", 0):
                naive.append(f"5-{value}")
        elif isinstance(value, str) and re.fullmatch("[0-9]+-[1-9][0-9]*", value) and key != "pfp":
            naive.append(value)

    whole = payload if isinstance(payload, dict) else {"rows": payload}
    walk(whole, None)
    result = scan(whole)

    assert [text for text in naive if text not in {*wrong, *result.present_ids}] == [one.id for one in result.matches]
    assert result.present_ids <= set(entities)
    assert wrong == [one.id for one in result.lookalikes]


# Limits of ids


@every_row("code", [0, 1, 2, 3, 4, 5, 6, 9, 10, 11])
@every_row("index", [1, 2, 9, 10, 19, 2**53 + 1, 2**63, MAX_INDEX - 1, MAX_INDEX])
def test_scan_accepts_all_type_codes_and_index_limits(code, index):
    """Codes 0-6 and 9-11 with indexes from 1 to 2**64 - 1 are ids."""
    assert [f"{code}-{index}"] == ids({"x": f"{code}-{index}"})


@pytest.mark.parametrize(
    "text",
    [f"1-{MAX_INDEX + 1}", "1-20000000000000000000", "1-18446744073709551620", "1-0", "1-00", "01-1", "1-01", "12-1",
     "7-1", "8-1", "7-18446744073709551615", "99-1", "1-1\n", "\n1-1", "1-1 ", " 1-1", "1-1\x00", "1--1", "1-1-1", "1-",
     "-1", "-", "", "1-१", "१-1", "\uff11-1", "1-²", "\u0661-\u0661", "uguild.0-1", "6-53@1-194", "11-1-194", "1_1",
     "1-1_0", "+1-1", "1-+1", "1-1e0", "1\u20131", "2024-01", "1-1,2-1", "x1-1"],
)  # fmt: skip
def test_scan_ignores_near_misses(text):
    """Texts that differ from an id by one character are not even look-alikes."""
    result = scan({"x": text, "owner": text, "l": [text]})

    assert ([], []) == (result.matches, result.lookalikes)


def test_scan_ignores_keys_substrings_and_numbers():
    assert [] == ids(
        {"1-11": "x", "a": "see 1-11", "b": 111, "c": 1.11, "d": b"1-11", "e": bytearray(b"1-11"), "2-1": None}
    )


@pytest.mark.parametrize("code", [7, 8])
def test_scan_ignores_infusion_and_address_ids(code):
    """7-n and 8-n do not exist on the chain. `kind` still returns their type."""
    result = scan({"objectId": f"{code}-1", "owner": f"{code}-1"})

    assert ([], []) == (result.matches, result.lookalikes)
    assert EntityType.from_code(code) == DETECTOR.find_type(f"{code}-1").name


def test_kind_returns_type_of_id_or_none():
    assert "player" == DETECTOR.find_type("1-11").name
    assert [None] * 7 == [DETECTOR.find_type(value) for value in ("1-0", "", None, 5, b"1-11", ["1-11"], "1-1" * 100)]


# Rules for fields


@pytest.mark.parametrize(
    "field",
    ["pfp", "pfpClientRenderAttributes", "pfp_client_render_attributes", "endpoint", "name", "username", "description",
     "message", "error", "version", "schema_version", "api_version", "coordinates", "position", "range", "timestamp",
     "created_at", "updated_at", "next_key", "total", "pagination", "search_string", "tag", "label", "entry"],
)  # fmt: skip
def test_scan_ignores_ids_in_denied_fields(field):
    """Denial includes arrays, but neither sibling fields nor nested objects."""
    result = scan({field: "1-11", "x": {field: ["1-12", ["1-13"]]}, "owner": "1-14"})

    assert ["1-14"] == [found.id for found in result.matches]
    assert [] == result.lookalikes


@pytest.mark.parametrize("field", ["name", "error", "position"])
def test_denied_field_also_denies_texts_of_its_object(field):
    """Deeper fields follow their own rules."""
    below = {"owner": "1-11", "name": "1-12", "more": {"owner": "1-13"}, "land": ["5-1"]}

    assert ["1-13", "5-1"] == ids({field: below})
    assert ["1-13", "5-1"] == ids({field: types.MappingProxyType(below)})
    assert ["1-11", "1-13", "5-1"] == ids({field: [below]})


@given(planted=strategies.payloads(), field=st.sampled_from(sorted(STRUCTS_SCHEME.deny - {"pagination"})))
@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_scan_below_denied_name_finds_only_deeper_ids(planted, field):
    found = DETECTOR.scan({field: planted.payload}).matches

    assert [
        (one.id, f"/{field}{one.pointer}")
        for one in DETECTOR.scan(planted.payload).matches
        if one.pointer.count("/") > 1 or str(look_up(planted.payload, one.pointer)).startswith(("{", "["))
    ] == [(one.id, one.pointer) for one in found]


@pytest.mark.parametrize(
    "subtree",
    ["1-11", ["1-11"], {"owner": "1-11"}, {"a": [{"owner": "1-11"}]}, ("1-11",), {"1-11"}, types.MappingProxyType({"owner": "1-11"}),
     EntityId.parse("1-11"), [[["1-11"]]]],
)  # fmt: skip
def test_scan_skips_everything_below_pagination(subtree):
    result = scan({"pagination": subtree, "data": [{"pagination": subtree}]})

    assert ([], []) == (result.matches, result.lookalikes)


HINTS = {
    "guildId": "0", "playerId": "1", "owner": "1", "controller": "1", "proposer": "1", "planetId": "2", "reactorId": "3",
    "primaryReactorId": "3", "substationId": "4", "entrySubstationId": "4", "structId": "5", "attackerStructId": "5",
    "targetPlayerId": "1", "commandStruct": "5", "space": "5", "air": "5", "land": "5", "water": "5", "structDefenders": "5",
    "allocationId": "6", "fleetId": "9", "locationListStart": "9", "locationListLast": "9", "locationListForward": "9",
    "locationListBackward": "9", "providerId": "10", "agreementId": "11", "locationId": "2 9", "destinationId": "3 4 5",
    "sourceObjectId": "1 3 4", "guild_id": "0", "player_id": "1", "planet_id": "2", "primary_reactor_id": "3",
    "entry_substation_id": "4", "attacker_struct_id": "5", "defending_struct_ids": "5", "fleet_id": "9", "location_id": "2 9",
    "provider_id": "10", "source_object_id": "1 3 4", "destination_id": "3 4 5", "command_struct": "5",
}  # fmt: skip


@pytest.mark.parametrize("field", HINTS)
def test_hinted_field_accepts_only_expected_types(field, caplog):
    """Ids of other types are skipped, counted as look-alikes, and logged once per scan."""
    caplog.set_level(logging.INFO, "mama_structs")
    codes = [str(code) for code in (0, 1, 2, 3, 4, 5, 6, 9, 10, 11)]
    promised = [code for code in codes if code in HINTS[field].split()]
    others = [code for code in codes if code not in promised]
    result = scan({"rows": [{field: f"{code}-3"} for code in codes], "more": {field: [f"{code}-4" for code in codes]}})

    assert [f"{code}-3" for code in promised] + [f"{code}-4" for code in promised] == [one.id for one in result.matches]
    assert [f"{code}-3" for code in others] + [f"{code}-4" for code in others] == [one.id for one in result.lookalikes]
    assert {field} == {one.field for one in result.lookalikes}
    assert 1 == len(caplog.records)


def test_object_id_field_accepts_any_type():
    assert ["0-1", "9-1", "11-1"] == ids({"objectId": "0-1", "object_id": "9-1", "a": {"objectId": "11-1"}})


def test_field_name_applies_to_nested_arrays_but_not_to_objects_in_them():
    result = scan({"land": [["5-1", ["5-2", "2-1"]], {"planetId": "2-2", "x": "2-3"}]})

    assert ["5-1", "5-2", "2-2", "2-3"] == [one.id for one in result.matches]
    assert ["2-1"] == [one.id for one in result.lookalikes]
    assert ["land", "land", "planetId", "x"] == [one.field for one in result.matches]


PRIMARY = [
    "owner",
    "guildId",
    "planetId",
    "fleetId",
    "substationId",
    "primaryReactorId",
    "entrySubstationId",
    "reactorId",
    "locationId",
    "providerId",
    "allocationId",
    "sourceObjectId",
    "destinationId",
    "controller",
    "guild_id",
    "planet_id",
    "fleet_id",
    "substation_id",
    "primary_reactor_id",
    "entry_substation_id",
    "reactor_id",
    "location_id",
    "provider_id",
    "allocation_id",
    "source_object_id",
    "destination_id",
]


@pytest.mark.parametrize("field", PRIMARY)
def test_owner_and_direct_relation_fields_are_primary(field):
    """Both spellings of the field names are covered."""
    found = scan({field: [f"{code}-1" for code in range(12)]}).matches

    assert found
    assert all(one.is_primary for one in found)


@pytest.mark.parametrize(
    "field", ["space", "land", "structDefenders", "commandStruct", "playerId", "objectId", "x", "locationListStart"]
)
def test_slots_and_other_fields_are_not_primary(field):
    found = scan({field: [f"{code}-1" for code in range(12)]}).matches

    assert found
    assert not any(one.is_primary for one in found)


# Numbers instead of complete struct ids


@pytest.mark.parametrize("field", ["protectedStructIndex", "protected_struct_index"])
@pytest.mark.parametrize(
    ("value", "found"),
    [("2184", ["5-2184"]), (2184, ["5-2184"]), (MAX_INDEX, [f"5-{MAX_INDEX}"]), (str(MAX_INDEX), [f"5-{MAX_INDEX}"]),
     ("5-7", ["5-7"]), (enum.IntEnum("E", {"A": 7}).A, ["5-7"]), (enum.Enum("T", {"A": "7"}, type=str).A, ["5-7"]),
     *((value, []) for value in ("0", 0, "", "007", "-5", -5, True, False, None, 5.0, "5.0", " 5", "5\n", "५", "²", MAX_INDEX + 1,
     10**400, 10**5000, -(10**5000), "9" * 5000, "2-7", [], {}, ["7"], float("nan")))],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_bare_struct_index_is_found_as_struct_id(field, value, found):
    """Non-zero whole numbers and their texts are indexes; other values are ignored."""
    payload = {"structAttributes": {"health": "3", field: value}}

    assert found == ids(payload)
    assert [f"/structAttributes/{field}"] * len(found) == [one.pointer for one in scan(payload).matches]


def test_bare_struct_index_is_found_in_rows_and_at_top_level():
    assert [("5-3", "/protectedStructIndex"), ("5-4", "/r/0/protectedStructIndex")] == places(
        {"protectedStructIndex": "3", "r": [{"protectedStructIndex": 4}]}
    )


# JSON within text


def test_scan_finds_ids_in_json_text_with_pointer_of_the_text():
    """Field rules apply inside the JSON of `map` and `detail`."""
    text = json.dumps(
        {"owner": "1-1", "land": ["", "5-2"], "name": "2-2", "guildId": "1-9", "pagination": {"x": "1-8"}}
    )
    result = scan({"map": text, "rows": [{"detail": json.dumps([["5-3"], {"protectedStructIndex": 4}])}]})

    assert [("1-1", "/map"), ("5-2", "/map"), ("5-3", "/rows/0/detail"), ("5-4", "/rows/0/detail")] == [
        (one.id, one.pointer) for one in result.matches
    ]
    assert ["owner", "land", "detail", "protectedStructIndex"] == [one.field for one in result.matches]
    assert ["1-9"] == [one.id for one in result.lookalikes]


@pytest.mark.parametrize("field", ["map", "detail"])
def test_scan_finds_ids_in_json_nested_in_json(field):
    """Their pointer is that of the outermost text."""
    inner = json.dumps({"owner": "1-2", field: json.dumps({"owner": "1-3"})})

    assert [("1-1", f"/a/{field}"), ("1-2", f"/a/{field}"), ("1-3", f"/a/{field}"), ("1-4", "/a/z")] == places(
        {"a": {field: json.dumps({"owner": "1-1", field: inner}), "z": "1-4"}}
    )


@pytest.mark.parametrize(
    "text",
    ['{"owner": "1-1"', '["1-1",]', "[" * 100_000 + "]" * 100_000, '{"a":' * 100_000, "{", "[", "", "null", '"1-1"', "{1-1}",
     "[" + "9" * 5000 + "]", '\ufeff["1-1"]'],
)  # fmt: skip
def test_scan_treats_invalid_json_as_plain_text(text):
    assert [("2-1", "/planetId")] == places({"map": text, "planetId": "2-1"})


def test_scan_accepts_json_text_with_whitespace_or_nan():
    assert ["1-1", "1-2", "1-3"] == ids(
        {"map": ' \n{"owner": "1-1"} ', "detail": '["1-2", NaN, "\\ud800"]', "x": {"map": '\t["1-3"]'}}
    )


def test_scan_reads_map_field_that_is_not_text():
    """`map` may be an object or an id. JSON in other fields is not parsed."""
    assert [("1-1", "/map/owner"), ("1-2", "/detail/0"), ("1-4", "/a/map")] == places(
        {"map": {"owner": "1-1"}, "detail": ["1-2"], "other": '{"owner": "1-3"}', "a": {"map": "1-4"}}
    )


def test_scan_ignores_json_text_over_one_megabyte():
    assert [] == ids({"map": json.dumps(["1-1", "x" * 2**20])})


# Python objects


class Colour(enum.StrEnum):
    ID = "1-5"


class Old(str, enum.Enum):  # noqa: UP042 - needed, because str() of a member differs from its text
    ID = "1-6"


class Text(str):
    __slots__ = ()

    def __str__(self):
        return "not 1-7"


@attrs.frozen
class Model:
    owner: object = "1-1"
    protected_struct_index: object = 12
    map: object = '{"owner": "1-2"}'
    pfp: str = "1-3"


@dataclasses.dataclass
class Data:
    planet_id: object = "2-1"
    guild_id: object = "1-9"


class Pydantic(pydantic.BaseModel):
    fleet_id: str = "9-1"
    rows: list[dict[str, str]] = [{"owner": "1-8"}]


class Root(pydantic.RootModel[list[str]]):
    pass


class Pair(collections.UserList):
    pass


@pytest.mark.parametrize(
    ("value", "text"), [(Colour.ID, "1-5"), (Old.ID, "1-6"), (Text("1-7"), "1-7"), (EntityId.parse("1-11"), "1-11")]
)
def test_scan_finds_ids_in_str_subclasses_enums_and_entity_ids(value, text):
    """Such a value has the text of an id, at its own pointer."""
    payload = {"owner": value, "land": [value], "rows": [{"x": (value,)}], "name": value}
    result = scan(payload)

    assert [(text, "/owner"), (text, "/rows/0/x/0")] == [(one.id, one.pointer) for one in result.matches]
    assert [(text, "/land/0")] == [(one.id, one.pointer) for one in result.lookalikes]
    assert ["owner", "x"] == [one.field for one in result.matches]
    assert all(type(one.id) is str for one in result.matches)


def test_exclude_applies_to_ids_of_other_classes():
    assert [] == ids({"owner": EntityId.parse("1-11"), "x": Colour.ID}, exclude={"1-11", "1-5"})


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (("1-1", "1-2"), ["1-1", "1-2"]),
        ({"1-2", "1-10", "1-1"}, ["1-1", "1-10", "1-2"]),
        (frozenset({"1-2", "1-1"}), ["1-1", "1-2"]),
        (collections.deque(["1-2", "1-1"]), ["1-2", "1-1"]),
        (Pair(["1-2", "1-1"]), ["1-2", "1-1"]),
        (Root(["1-2", "1-1"]), ["1-2", "1-1"]),
        ({"1-3": 0}.keys(), ["1-3"]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_scan_reads_tuples_sets_deques_and_other_arrays(value, found):
    """Members have the name of the array's field. Sets are sorted."""
    expected = [(text, f"/a/playerId/{number}") for number, text in enumerate(found)]
    result = scan({"a": {"playerId": value}, "pfp": value, "guildId": value})

    assert expected == [(one.id, one.pointer) for one in result.matches]
    assert ["playerId"] * len(found) == [one.field for one in result.matches]
    assert found == [one.id for one in result.lookalikes]


@pytest.mark.parametrize(
    "make",
    [
        types.MappingProxyType,
        collections.OrderedDict,
        collections.ChainMap,
        collections.UserDict,
    ],
)
def test_scan_reads_mappings_of_other_classes(make):
    """Field rules, bare indexes and JSON texts apply as in a dict."""
    mapping = make(
        {"owner": "1-1", "protectedStructIndex": "3", "map": '["5-4"]', "pagination": {"x": "1-9"}, "name": "1-8"}
    )
    members = [("1-1", "owner"), ("5-3", "protectedStructIndex"), ("5-4", "map")]

    assert [
        *((text, f"/a/{name}") for text, name in members),
        *((text, f"/l/0/{name}") for text, name in members),
    ] == places({"a": mapping, "l": [mapping]})


def test_scan_reads_fields_of_attrs_dataclass_and_pydantic_objects():
    result = scan({"a": Model(), "l": [Data(), {"m": Model(owner=Data())}], "p": (Pydantic(),)})

    assert [
        ("1-1", "/a/owner"), ("5-12", "/a/protected_struct_index"), ("1-2", "/a/map"), ("2-1", "/l/0/planet_id"),
        ("2-1", "/l/1/m/owner/planet_id"), ("5-12", "/l/1/m/protected_struct_index"), ("1-2", "/l/1/m/map"),
        ("9-1", "/p/0/fleet_id"), ("1-8", "/p/0/rows/0/owner"),
    ] == [(one.id, one.pointer) for one in result.matches]  # fmt: skip
    assert ["/l/0/guild_id", "/l/1/m/owner/guild_id"] == [one.pointer for one in result.lookalikes]


def test_scan_ignores_classes():
    assert [] == ids({"a": Model, "b": Data, "c": Pydantic, "d": EntityId, "e": EntityType, "f": dict})


def test_scan_accepts_keys_of_any_type():
    """Other keys are converted to text for pointers and match no field rules."""
    payload = {
        1: "1-1",
        None: "1-2",
        ("a", "b"): "1-3",
        2.5: {False: "1-4"},
        EntityType.PLAYER: "1-5",
        b"owner": "2-1",
        None.__class__: ["1-6"],
    }

    assert ["1-1", "1-2", "1-3", "1-4", "1-5", "2-1", "1-6"] == ids(payload)
    assert ["/1", "/None", "/('a', 'b')", "/2.5/False", "/player"] == [one.pointer for one in scan(payload).matches][:5]
    assert ["1-7"] == ids({Colour.ID: {"x": "1-7"}})


def test_field_rules_apply_to_enum_member_keys():
    names = enum.StrEnum(
        "Names", {"GUILD": "guildId", "NAME": "name", "PAGES": "pagination", "INDEX": "protectedStructIndex"}
    )
    result = scan({names.GUILD: "1-1", names.NAME: "1-2", names.PAGES: ["1-3"], names.INDEX: 4})

    assert ["5-4"] == [one.id for one in result.matches]
    assert ["1-1"] == [one.id for one in result.lookalikes]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [(["a/b"], "/a~1b"), (["m~n"], "/m~0n"), (["~1"], "/~01"), ([""], "/"), (["", ""], "//"), ([0, "x"], "/0/x")],
)
def test_pointers_are_escaped_by_rfc_6901(keys, expected):
    place = None
    for key in keys[:-1]:
        place = (place, key)

    assert expected == format_json_pointer(place, keys[-1])


def test_place_is_prefix_of_every_pointer():
    """References of an entity are relative to the finished answer."""
    assert [("0-1", "/references/1-11/guildId")] == places({"guildId": "0-1"}, position=((None, "references"), "1-11"))


def test_skip_applies_to_top_level_keys_only():
    payload = {"a": "1-1", "b": {"a": "1-2"}, "protectedStructIndex": 3}

    assert ["1-2", "5-3"] == ids(payload, skip_fields=("a",))
    assert ["1-1", "1-2", "5-3"] == ids(payload, skip_fields=())


def test_excluded_ids_are_neither_found_nor_counted_as_look_alikes():
    result = scan({"id": "1-1", "owner": "1-1", "guildId": "1-1", "x": ["1-1", "1-2"]}, exclude={"1-1"})

    assert (["1-2"], []) == ([one.id for one in result.matches], result.lookalikes)


def test_match_repr_shows_type_id_and_pointer():
    assert ["<IdMatch player 1-1 at /owner>"] == [repr(one) for one in scan({"owner": "1-1"}).matches]


# Ids within rows


def test_matches_have_the_index_of_their_row():
    """Matches outside the list have no row."""
    rows = [
        {"a": [{"owner": "1-1"}, ["1-2"]], "x": "1-3"},
        "1-4",
        [["1-5"], "1-6"],
        ("1-7",),
        {"y": {"z": "1-8"}, "w": "1-9"},
        Colour.ID,
    ]
    found = scan({"before": {"b": ["1-10"]}, "rows": rows, "after": [{"c": "1-11"}], "d": "1-12"}, rows=rows).matches

    assert [None, 0, 0, 0, 1, 2, 2, 3, 4, 4, 5, None, None] == [one.row for one in found]


def test_rows_are_recognised_by_list_identity():
    """An equal list has no rows; another occurrence of the same list has."""
    rows = [{"owner": "1-1"}]
    found = scan({"a": [{"owner": "1-1"}], "b": {"rows": rows}, "c": rows, "d": "1-2"}, rows=rows).matches

    assert [None, 0, 0, None] == [one.row for one in found]


def test_shared_objects_are_found_at_every_occurrence():
    shared = {"owner": "1-1", "l": ["1-2"]}
    rows = [{"x": shared}, {"y": shared}, shared]
    found = scan({"rows": rows, "z": shared}, rows=rows).matches

    assert [
        ("/rows/0/x/owner", 0), ("/rows/0/x/l/0", 0), ("/rows/1/y/owner", 1), ("/rows/1/y/l/0", 1),
        ("/rows/2/owner", 2), ("/rows/2/l/0", 2), ("/z/owner", None), ("/z/l/0", None),
    ] == [(one.pointer, one.row) for one in found]  # fmt: skip


def test_careful_walk_numbers_rows_and_finds_shared_objects():
    """Great depth triggers the walk that tracks its path."""
    shared = {"owner": "1-1"}
    rows = [{"x": shared, "deep": nested("1-2", 100, lambda value: [value])}, {"y": shared, "z": "1-3"}]
    found = scan({"rows": rows, "w": shared}, rows=rows).matches

    assert [("1-1", 0), ("1-2", 0), ("1-1", 1), ("1-3", 1), ("1-1", None)] == [(one.id, one.row) for one in found]


# Hostile payloads


@pytest.mark.parametrize(
    "wrap",
    [
        lambda value: [value],
        lambda value: {"a": value},
        lambda value: (value,),
        lambda value: [{"x": value}],
        Model,
    ],
    ids=["list", "dict", "tuple", "mixed", "attrs"],
)
def test_scan_handles_ten_thousand_levels(wrap):
    result = scan({"owner": nested("1-1", 10_000, wrap), "z": "1-99"})

    assert ["1-1", "1-99"] == [one.id for one in result.matches if one.id in ("1-1", "1-99")]
    assert result.is_complete
    assert result.matches[0].pointer.count("/") >= 1


def test_scan_skips_set_that_cannot_be_sorted():
    """Comparing its deeply nested tuples raises an error. Sibling fields are still scanned."""
    assert ["1-2"] == ids({"a": {nested("1-1", 5000, lambda value: (value,)), 5}, "owner": "1-2"})


def cycles():
    direct = {"owner": "1-1"}
    direct["self"] = direct
    mutual, other = {"owner": "1-1"}, {"x": "1-2"}
    mutual["other"], other["back"] = other, mutual
    array = ["1-1"]
    array.append(array)
    model = Data(planet_id="2-1", guild_id="0-1")
    model.planet_id = [model, "2-1"]
    proxy = {"owner": "1-1"}
    proxy["p"] = types.MappingProxyType(proxy)
    return {
        "direct": (direct, ["1-1"]), "mutual": (mutual, ["1-1", "1-2"]), "array": ({"x": array}, ["1-1"]),
        "model": ({"m": model}, ["2-1", "0-1"]), "deep": ({"x": nested(direct, 100, lambda value: [value])}, ["1-1"]),
        "in rows": ({"rows": [direct, direct]}, ["1-1"]),
    }  # fmt: skip


@pytest.mark.parametrize("name", cycles())
def test_scan_terminates_on_cycles(name):
    payload, expected = cycles()[name]
    result = scan(payload)

    assert expected == list(dict.fromkeys(one.id for one in result.matches))
    assert len(result.matches) <= 4
    assert result.is_complete


def test_scan_of_cycle_finds_shared_objects_at_every_occurrence():
    shared = {"owner": "1-1"}
    payload = {"a": shared, "b": [shared]}
    payload["self"] = payload

    assert [("1-1", "/a/owner"), ("1-1", "/b/0/owner")] == places(payload)


def test_scan_visits_object_with_many_self_references_once():
    array = ["1-1"]
    array.extend([array] * 100)
    payload = {"a": array}
    payload |= {f"k{number}": payload for number in range(100)}

    assert [("1-1", "/a/0")] == places(payload)


@pytest.fixture
def few_containers(monkeypatch):
    """Lower the container limits to 5,000, so that counting the steps does not take too long."""
    monkeypatch.setattr("mama_structs.references.detection._MAX_CONTAINERS", 5_000)
    monkeypatch.setattr("mama_structs.references.detection._MAX_CAREFUL_CONTAINERS", 5_000)


def bounded(steps, payload, *, members):
    """Scan a payload, and assert that the number of steps is bounded by the container limit. Return the result."""
    with steps:
        result = scan(payload)
    assert steps.count < 2 * 5_000 * 20 * members
    return result


def test_scan_of_fully_connected_objects_ends_incomplete(steps, few_containers):
    """It walks a limited number of the n! paths through n objects."""
    nodes = [{"owner": f"1-{number + 1}"} for number in range(12)]
    for node in nodes:
        node |= {str(number): other for number, other in enumerate(nodes)}

    assert not bounded(steps, nodes[0], members=13).is_complete


def test_scan_of_shared_list_bomb_ends_incomplete(steps, few_containers):
    """Thirty nested lists that contain the next one twice have a billion paths."""
    payload = {"first": "2-1", "bomb": nested(["1-1"], 30, lambda value: [value, value])}
    result = bounded(steps, payload, members=2)

    assert not result.is_complete
    assert "2-1" == result.matches[0].id


@pytest.mark.once
def test_scan_handles_two_hundred_thousand_keys_with_bounded_caches():
    result = scan({f"k{number}": f"1-{number}" for number in range(200_001)})

    assert result.is_complete
    assert 200_000 == len(result.matches)
    assert len(DETECTOR.types_by_text) <= 2**16
    assert all(len(kind) <= 2**16 for kind in DETECTOR.types_by_text.values() if kind is not None)


def test_scan_skips_long_strings_cheaply(steps):
    payload = {"a": "1-" + "1" * 10**7, "b": "-" * 10**7, "map": "[" * 10**7, "owner": "1-1", "c": "\ud800-1"}

    assert ["1-1"] == ids(payload)
    assert steps(scan, payload) < 300


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), 10**5000, b"1-1", bytearray(b"1-1"), memoryview(b"1-1"), range(10**15), object(), print, 1j, ...,
     collections.UserString("1-1"), (x for x in ["1-1"]), {"1-1": 1}.values(), time],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_scan_ignores_values_without_json_form(steps, value):
    payload = {"a": value, "l": [value], "owner": value, "planetId": "2-1"}

    assert ["2-1"] == ids(payload)
    assert steps(scan, payload) < 300


def raising(*_, **__):
    raise RuntimeError("1-666")


class Endless(Sequence):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        return "1-3"


class BrokenMapping(Mapping):
    __getitem__ = __iter__ = __len__ = raising


class BrokenSequence(Sequence):
    __getitem__ = __iter__ = __len__ = raising


class BrokenKey(str):
    __slots__ = ()
    __str__ = __repr__ = raising


BROKEN = {
    "mapping": BrokenMapping,
    "sequence": BrokenSequence,
    "dict": lambda: type("BrokenDict", (dict,), {"items": raising, "keys": raising})(a=1),
    "list": lambda: type("BrokenList", (list,), {"__iter__": raising, "__len__": raising, "__bool__": raising})([1]),
    "attributes": type("Odd", (), {"__getattr__": raising, "__eq__": raising, "__hash__": None, "__len__": raising}),
    "dump": type("Odd", (pydantic.BaseModel,), {"__module__": __name__, "model_dump": raising}),
    "class": type("Odd", (), {"__class__": property(raising)}),
    "set": lambda: type("BrokenSet", (set,), {"__iter__": raising})([1]),
    "hash": type("Odd", (), {"__eq__": raising, "__hash__": raising, "__repr__": raising}),
    "number": lambda: type(
        "BrokenInt", (int,), {"__lt__": raising, "__gt__": raising, "__str__": raising, "__int__": raising}
    )(5),
    "text": lambda: type(
        "BrokenText",
        (str,),
        dict.fromkeys(("__str__", "__eq__", "__len__", "isascii", "lstrip"), raising) | {"__hash__": None},
    )("7"),
    "in a set": lambda: {type("Odd", (), {"__str__": raising})()},
}


@pytest.mark.parametrize("name", BROKEN)
def test_scan_skips_objects_that_raise(name):
    """Values before and after them are found."""
    value = BROKEN[name]()
    payload = {"a": "1-1", "b": value, "c": [value, "1-2"], "protectedStructIndex": value, "map": value, "z": "1-3"}

    assert ["1-1", "1-2", "1-3"] == [text for text in ids(payload) if not text.startswith("5-")]


def test_scan_of_infinite_array_ends_incomplete():
    result = scan({"a": Endless(), "z": "1-4"})

    assert ("1-3", "1-4") == (result.matches[0].id, result.matches[-1].id)
    assert not result.is_complete


def test_scan_skips_pydantic_models_that_cannot_be_serialized():
    """Pydantic raises for a cycle and for an object of an unknown class."""

    class Node(pydantic.BaseModel):
        child: object = None

    node = Node()
    node.child = node

    assert ["1-1"] == ids({"n": node, "m": Node(child=object()), "owner": "1-1"})


def test_unreadable_object_is_logged_without_content(caplog):
    caplog.set_level(logging.INFO, "mama_structs")
    scan({"b": BrokenMapping()})

    assert 1 == len(caplog.records)
    assert "BrokenMapping" in caplog.text
    assert "1-666" not in caplog.text
