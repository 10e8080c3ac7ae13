"""Classification of payloads as query answers or lists, and detection of the ids of the returned entities."""

import collections
import enum

import attrs
import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mama_structs.references.detection import IdDetector
from mama_structs.references.payload_shape import classify_payload
from mama_structs.references.schemes import IdScheme
from mama_structs.structs.ids import EntityId
from mama_structs.structs.scheme import STRUCTS_SCHEME
from mama_structs.testing import strategies

DETECTOR = IdDetector([STRUCTS_SCHEME])
PLANETS = [{"id": "2-1", "owner": "1-1"}, {"id": "2-2", "owner": "1-2"}]
PAGES = {"next_key": None, "total": "2"}


def shape(payload, **options):
    return classify_payload(payload, DETECTOR, **options)


@attrs.frozen
class Planet:
    id: object
    owner: str = "1-1"


@attrs.frozen
class Page:
    planets: tuple


class Colour(enum.StrEnum):
    ID = "2-1"


LISTS = {
    "a page of the chain": {"Planet": PLANETS, "pagination": PAGES},
    "the guild API": {"success": True, "errors": [], "data": PLANETS},
    "the MCP server": {"planets": PLANETS, "pagination": {"page_key": "2-9"}, "timestamp": "2026-09-02T18:10:00Z"},
    "the MCP server, a level down": {"data": {"planets": PLANETS, "pagination": PAGES}, "cached": False},
    "a level down, named after its type": {"result": {"Planet": PLANETS}},
    "a level down, named after its type in the plural": {"_embedded": {"planets": PLANETS}, "_links": {"self": "x"}},
    "a level down, under a name for lists": {
        "response": {"items": PLANETS, "count": 2},
        "summary": {"top": {"id": "1-1"}},
    },
    "beside whatever is no entity": {
        "planets": PLANETS,
        "meta": {"id": "request-1", "owner": "1-1"},
        "links": {"self": "/planets"},
        "summary": {"owners": ["1-1", "1-2"], "best": {"planet": {"id": "2-9"}}},
        "tags": [{"name": "new"}],
        "count": 2,
    },
    "JSON:API": {
        "data": [{"type": "planets", "id": row["id"], "attributes": {"name": "x"}} for row in PLANETS],
        "included": [{"type": "players", "id": "1-1", "attributes": {"name": "Ada"}}],
        "errors": [{"id": "1-9"}],
    },
    "allocations with an empty status": {"Allocation": PLANETS, "status": [], "pagination": PAGES},
    "beside an empty object": {"rows": PLANETS, "errors": {}, "warnings": []},
    "rows in envelopes": {"rows": [{"Planet": row, "gridAttributes": {"ore": "1"}} for row in PLANETS]},
    "rows as models": {"rows": [Planet("2-1"), Planet(EntityId.parse("2-2"))]},
    "a tuple": {"rows": tuple(PLANETS)},
    "a model as envelope": {"data": Page(tuple(PLANETS))},
    "ids of another class": {"rows": [{"id": Colour.ID}, {"id": EntityId.parse("2-2")}]},
    "an enriched page": {
        "Planet": PLANETS,
        "references": {"1-1": {"id": "1-1"}},
        "references_meta": {"omitted_ids": ["1-2"]},
    },
    "some rows without an id": {"rows": [{"x": 1}, *PLANETS, None, "text", 5]},
}


@pytest.mark.parametrize("name", LISTS)
def test_payload_with_one_array_of_entities_is_a_list(name):
    """The own ids of the rows are not references."""
    described = shape(LISTS[name])

    assert ("list", None) == (described.kind, described.main_id)
    assert {"2-1", "2-2"} == described.own_ids
    assert described.rows is not None


QUERIES = {
    "an envelope": ({"Player": {"id": "1-11", "guildId": "0-1"}, "gridAttributes": {"ore": "0"}}, "1-11"),
    "an envelope with an array": ({"Struct": {"id": "5-1"}, "structAttributes": {"health": "3"}, "structDefenders": ["5-2"]}, "5-1"),
    "a bare entity": ({"id": "2-1", "space": ["5-1"], "land": []}, "2-1"),
    "an entity with one array": ({"id": "2-1", "visitors": [{"id": "9-1"}]}, "2-1"),
    "a mixed payload": ({"player": {"id": "1-1"}, "planets": PLANETS}, "1-1"),
    "the guild API": ({"success": True, "errors": [], "data": {"id": "0-1", "owner": "1-1"}}, "0-1"),
    "nested envelopes": ({"data": {"result": {"Guild": {"id": "0-1"}}}}, "0-1"),
    "a model": ({"player": Planet("2-1")}, "2-1"),
    "an id of its own class": ({"id": EntityId.parse("1-5"), "rows": PLANETS}, "1-5"),
    "an empty list": ({"Planet": [], "pagination": PAGES}, None),
    "nothing": ({}, None),
    "texts": ({"ids": ["1-1", "1-2"], "pagination": PAGES}, None),
    "records without ids": ({"rows": [{"owner": "1-1"}, {"owner": "1-2"}]}, None),
    "rows with ids of no type": ({"rows": [{"id": "12-1"}, {"id": 5}, {"id": ["2-1"]}]}, None),
    "three levels down": ({"a": {"b": {"c": PLANETS}}}, None),
    "an entity beside a list a level down": ({"data": {"guild": {"id": "0-1"}, "planets": PLANETS}}, "0-1"),
    "a list in an entity": ({"player": {"id": "1-1", "planets": PLANETS}}, "1-1"),
    "a list a level down under any names": ({"a": {"b": PLANETS}}, None),
    "two lists on two levels": ({"planets": PLANETS, "data": {"players": [{"id": "1-1"}]}}, None),
    "JSON:API about one": ({"data": {"type": "planets", "id": "2-1"}, "included": [{"type": "players", "id": "1-1"}]}, "2-1"),
    "two lists": ({"planets": PLANETS, "players": [{"id": "1-1"}]}, None),
    "four envelopes": ({"a": {"b": {"c": {"d": {"id": "1-1"}}}}}, None),
    "a list five levels down": ({"a": {"b": {"c": {"d": {"e": PLANETS}}}}}, None),
    "an id below pagination": ({"pagination": {"id": "1-1"}}, None),
    "references of others": ({"references": {"1-1": {"id": "1-1"}}, "references_meta": {"x": {"id": "1-1"}}}, None),
    "only scalars": ({"a": 1, "b": None, "c": "1-1", "d": EntityId.parse("1-1")}, None),
}  # fmt: skip


@pytest.mark.parametrize("name", QUERIES)
def test_other_payload_is_a_query(name):
    """The id of its first entity is its own id."""
    payload, main = QUERIES[name]
    described = shape(payload)

    assert ("query", None, main) == (described.kind, described.rows, described.main_id)
    assert frozenset({main} - {None}) == described.own_ids
    assert main == described.find_holder_id(None) == described.find_holder_id(3)


def test_rows_are_the_payloads_own_list_object():
    """Rows are recognised by identity."""
    assert PLANETS is shape({"x": {"Planet": PLANETS}}).rows


def test_holder_is_the_entity_of_the_row():
    """Outside the rows it is the subject or None."""
    payload = {"rows": [{"id": "2-1"}, {"x": 1}, {"Planet": {"id": "2-2"}}]}
    described, about = shape(payload), shape(payload, subject="1-1")

    assert ["2-1", None, "2-2", None] == [described.find_holder_id(row) for row in (0, 1, 2, None)]
    assert "1-1" == about.find_holder_id(None)
    assert {"2-1", "2-2", "1-1"} == about.own_ids


def test_subject_is_the_main_id():
    """The payload's own id is not a reference either."""
    described = shape({"Player": {"id": "1-11"}}, subject="1-12")

    assert "1-12" == described.main_id
    assert {"1-11", "1-12"} == described.own_ids
    assert ({"1-12"}, "1-12") == (shape({"a": 1}, subject="1-12").own_ids, shape({"a": 1}, subject="1-12").main_id)


def test_kind_query_overrides_list_detection():
    described = shape({"Planet": PLANETS}, kind="query")

    assert ("query", None, None) == (described.kind, described.rows, described.main_id)


@pytest.mark.parametrize(
    ("payload", "rows"),
    [
        ({"ids": ["1-1", "1-2"]}, ["1-1", "1-2"]),
        ({"rows": [{"owner": "1-1"}]}, [{"owner": "1-1"}]),
        ({"guild": {"id": "0-1"}, "planets": PLANETS}, PLANETS),
        ({"id": "0-1", "planets": PLANETS}, PLANETS),
        ({"data": {"planets": PLANETS}}, PLANETS),
        ({"Planet": []}, None),
        ({"a": 1}, None),
        ({"Planet": {"id": "2-1"}}, None),
    ],
)
def test_kind_list_uses_first_array_as_rows(payload, rows):
    described = shape(payload, kind="list")

    assert ("list", rows) == (described.kind, described.rows)


def test_kind_list_without_rows_has_own_id_of_entity():
    assert ({"2-1"}, "2-1") == (
        shape({"Planet": {"id": "2-1"}}, kind="list").own_ids,
        shape({"Planet": {"id": "2-1"}}, kind="list").main_id,
    )


def test_rows_may_be_mappings_of_any_class():
    class Row(pydantic.BaseModel):
        id: str

    rows = [collections.OrderedDict(id="2-1"), collections.UserDict(id="2-2"), Row(id="2-3")]

    assert {"2-1", "2-2", "2-3"} == shape({"rows": rows}).own_ids


def test_describe_terminates_for_cyclic_payload():
    """Only three levels of envelopes are followed."""
    payload = {}
    payload["a"] = {"b": payload}
    rows = [PLANETS[0]]
    rows.append(rows)

    assert "query" == shape(payload).kind
    assert "list" == shape({"rows": rows}).kind


def test_payload_with_many_members_is_not_an_envelope():
    many = {f"k{number}": {"x": number} for number in range(16)}

    assert None is shape({**many, "last": {"id": "1-1"}}).main_id
    assert "1-1" == shape({**dict(list(many.items())[:15]), "last": {"id": "1-1"}}).main_id


@given(strategies.list_payloads(min_size=1))
@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_own_ids_of_generated_page_are_ids_of_rows(planted):
    described = shape(planted.payload)

    assert "list" == described.kind
    assert [str(own) for own in planted.own_ids] == [
        described.find_holder_id(row) for row in range(len(planted.own_ids))
    ]
    assert {str(own) for own in planted.own_ids} == described.own_ids


@given(strategies.payloads())
@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_main_id_of_generated_payload_is_its_subject(planted):
    described = shape(planted.payload)

    assert "query" == described.kind
    assert (None if planted.subject is None else str(planted.subject)) == described.main_id


def test_row_with_ids_is_not_an_envelope_of_related_entity():
    rows = [{"player_id": "1-1", "guild": {"id": "0-1"}}, {"id": "job-7", "planet": {"id": "2-1"}}, {"id": "1-5"}]

    described = shape({"rows": rows})

    assert "list" == described.kind
    assert {"1-5"} == described.own_ids


def test_payload_with_id_of_other_system_is_not_an_envelope():
    assert set() == classify_payload({"id": "job-7", "planet": {"id": "2-1"}, "target": "2-1"}, DETECTOR).own_ids
    assert {"2-1"} == classify_payload({"success": True, "data": {"id": "2-1"}}, DETECTOR).own_ids


def test_own_id_field_is_configured_by_scheme():
    scheme = IdScheme(name="issues", pattern=r"([A-Z]+)-\d+", type_of={"ABC": "issue"}, own={"key"})

    described = classify_payload({"issues": [{"key": "ABC-1", "id": "10"}, {"key": "ABC-2"}]}, IdDetector([scheme]))

    assert "list" == described.kind
    assert {"ABC-1", "ABC-2"} == described.own_ids


def beside():
    """Return a strategy for the members next to a list in a payload. None of these members is an entity."""
    values = (
        st.none()
        | st.integers()
        | st.sampled_from(["1-1", "x", ["1-1", "2-1"], [], {}, [{"owner": "1-1"}], {"next_key": "2-9", "total": 3}])
        | st.fixed_dictionaries({"id": st.sampled_from(["request-1", 5]), "best": st.just({"x": {"id": "1-1"}})})
    )
    names = st.sampled_from(["meta", "links", "pagination", "summary", "success", "count", "data2", "warnings"])
    return st.dictionaries(names, values, max_size=4)


def rows():
    """Return a strategy for the rows of a list, which have one type. Some rows are not entities."""
    forms = st.sampled_from(
        [
            lambda one: {"id": one, "owner": "1-9"},
            lambda one: {"Planet": {"id": one}, "gridAttributes": {"ore": "1"}},
            lambda one: {"type": "planets", "id": one, "attributes": {}, "relationships": {}},
            Planet,
        ]
    )
    ids = st.lists(st.integers(1, 99).map("2-{}".format), min_size=1, max_size=5, unique=True)
    others = st.lists(st.sampled_from([None, "text", {"x": 1}, 5]), max_size=2)
    return st.builds(lambda form, own, more: (own, [*map(form, own), *more]), forms, ids, others)


@given(
    listed=rows(),
    name=st.sampled_from(["Planet", "planets", "data", "items", "results", "records", "rows"]),
    wrapper=st.sampled_from([None, "data", "items", "Results", "planets", "response", "_embedded"]),
    others=st.tuples(beside(), beside()),
    included=st.sampled_from([{}, {"included": [{"id": "1-9", "name": "x"}]}, {"errors": [{"id": "1-8"}]}]),
)
def test_describe_recognises_list_with_any_siblings(listed, name, wrapper, others, included):
    """
    The array may be at the top or one level down.

    Another entity or array there makes the payload a query.
    """
    (own, array), (around, inside) = listed, others
    members = {**inside, name: array}
    payload = {**around, **included, **(members if wrapper is None else {wrapper: members})}
    described = shape(payload)

    assert ("list", set(own), True) == (described.kind, described.own_ids, described.rows is array)
    for level in (payload, payload if wrapper is None else members):
        for more in ({"player": {"id": "1-1"}}, {"players": [{"id": "1-1"}]}, {"id": "0-1"}):
            level.update(more)
            assert "query" == shape(payload).kind
            for key in more:
                del level[key]
    assert "list" == shape(payload).kind
