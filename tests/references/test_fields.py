"""Ids that do not contain their type. The name of their field determines the type."""

import collections

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs.errors import EntityNotFound, InvalidArgument
from mama_structs.references.decorator import with_references
from mama_structs.references.detection import IdDetector
from mama_structs.references.options import ReferenceOptions
from mama_structs.references.payload_shape import classify_payload
from mama_structs.references.schemes import MAX_ID_LENGTH, IdScheme, Source
from mama_structs.structs.scheme import STRUCTS_SCHEME

SHOP = IdScheme(
    name="shop",
    fields={
        "customer_id": "customer",
        "*_ids": "product",
        "*.assignee": "user",
        "orders.ref": "order",
        "id_of_order": "order",
    },
    primary={"customer_id"},
    deny={"note", "denied_ids"},
)
ROWS = {
    "customer:7": {"id": 7, "name": "Ada", "assignee": "u-1"},
    "user:u-1": {"id": "u-1", "name": "Grace"},
    "order:1": {"id": 1, "customer_id": 7, "product_ids": [3, 4], "ref": 2},
    "product:3": {"id": 3, "name": "Screw"},
}


def found(payload, scheme=SHOP, **options):
    return [(one.id, one.type, one.pointer) for one in IdDetector([scheme]).scan(payload, **options).matches]


def keys(payload, scheme=SHOP):
    return [one[0] for one in found(payload, scheme)]


def bare_ids():
    """Return a strategy for ids without a type, such as database keys."""
    numbers = st.integers(0, 10**6) | st.integers(-5, 10**30)
    return numbers | st.text(min_size=1, max_size=20) | st.just("x" * MAX_ID_LENGTH) | st.just("a:b/c~d")


NO_IDS = st.sampled_from([None, True, False, 1.5, "", "x" * (MAX_ID_LENGTH + 1), 10**600, b"7", {}, []])


@st.composite
def planted(draw):
    """Return a scheme with random fields, a payload, and the matches that a scan must find."""
    names = draw(st.lists(st.text("abcdefg_", min_size=2, max_size=8), min_size=2, max_size=6, unique=True))
    types = {name: draw(st.sampled_from(["customer", "user", "order"])) for name in names[: len(names) // 2]}
    expected = []

    def member(name, pointer):
        if draw(st.booleans()):
            ids = draw(st.lists(bare_ids() | NO_IDS, max_size=3))
            value = draw(st.sampled_from([list, tuple]))(ids)
            places = [(one, f"{pointer}/{at}") for at, one in enumerate(ids)]
        else:
            value = draw(bare_ids() | NO_IDS)
            places = [(value, pointer)]
        for one, place in places:
            is_id = (type(one) is int and abs(one) < 10**MAX_ID_LENGTH) or (
                type(one) is str and 0 < len(one) <= MAX_ID_LENGTH
            )
            if name in types and is_id:
                expected.append((f"{types[name]}:{one}", types[name], place))
        return value

    def mapping(pointer, depth):
        made = {}
        for name in draw(st.lists(st.sampled_from(names), unique=True)):
            made[name] = member(name, f"{pointer}/{name}")
        if depth and draw(st.booleans()):
            made["0"] = mapping(f"{pointer}/0", depth - 1)
        return made

    return IdScheme(name="any", fields=types), mapping("", 2), expected


@given(planted())
def test_scan_finds_exactly_the_ids_in_scheme_fields(case):
    """Ids are texts, whole numbers and arrays of both."""
    scheme, payload, expected = case

    assert expected == found(payload, scheme)


def test_field_pattern_with_dot_matches_name_of_container():
    """
    The part before the dot is the name of the mapping or list.

    A star matches any name, and the top level.
    """
    payload = {
        "assignee": "u-1",
        "ref": 9,
        "orders": [{"ref": 1}, {"data": {"ref": 2}}],
        "returns": [{"ref": 3, "assignee": "u-2"}],
        "product_ids": ["3", 4, ["5", None, {"ref": 6}]],
    }

    assert ["user:u-1", "order:1", "order:2", "user:u-2", "product:3", "product:4", "product:5"] == keys(payload)


def test_denied_fields_are_excluded_from_patterns():
    """Denial includes fields one level below a denied name."""
    assert ["customer:4"] == keys({"denied_ids": [1], "note": {"customer_id": 3, "more": {"customer_id": 4}}})


def test_scheme_pattern_restricts_ids_in_fields():
    scheme = IdScheme(name="x", fields={"customer_id": "customer"}, pattern="[1-9][0-9]*")

    assert ["customer:7", "customer:8"] == keys(
        {"a": [{"customer_id": value} for value in (7, "8", 0, "x", -1)]}, scheme
    )


OWN = {
    "by the name of the list": {"customers": [{"id": 7}, {"id": "8"}]},
    "by the name of the mapping": {"rows": [{"customer": {"id": 7}}, {"customer": {"id": 8}}]},
    "by what the mapping says": {"data": [{"type": "customers", "id": "7"}, {"type": "Customer", "id": "8"}]},
}


@pytest.mark.parametrize("name", OWN)
def test_own_id_type_is_derived_from_container_name_or_type_field(name):
    """Such rows are entities, and not references to themselves."""
    detector = IdDetector([SHOP])
    shape = classify_payload(OWN[name], detector)

    assert ("list", {"customer:7", "customer:8"}) == (shape.kind, shape.own_ids)
    assert [] == detector.scan(OWN[name], rows=shape.rows, exclude=shape.own_ids).matches


def test_own_id_type_can_be_declared_in_scheme_fields():
    scheme = IdScheme(name="x", fields={"people.id": "user", "owner_id": "user"})
    detector = IdDetector([scheme])

    assert {"user:7"} == classify_payload({"people": [{"id": 7}]}, detector).own_ids
    assert set() == classify_payload({"things": [{"id": 7}]}, detector).own_ids
    assert {"user:7"} == classify_payload(
        {"things": [{"id": 7}]}, IdDetector([IdScheme(name="x", fields={"id": "user"})])
    ).own_ids


def test_complete_entity_is_present_and_incomplete_entity_is_reference():
    whole = {"id": 7, "name": "Ada", "mail": "a@x", "city": "x"}
    scan = IdDetector([SHOP]).scan({"customer_id": 7, "n": [{"customer": whole}, {"customer": {"id": 8}}]})

    assert {"customer:7"} == scan.present_ids
    assert [("customer:8", "customer")] == [(one.id, one.field) for one in scan.matches]


def test_schemes_with_and_without_fields_can_be_combined():
    detector = IdDetector([STRUCTS_SCHEME, SHOP])
    scan = detector.scan({"owner": "1-11", "customer_id": 7, "protectedStructIndex": 3, "x": "customer:9"})

    assert ["1-11", "customer:7", "5-3"] == [one.id for one in scan.matches]
    assert ["customer", "player", None] == [
        None if kind is None else kind.name for kind in map(detector.find_type, ("customer:7", "1-11", "planet:7"))
    ]


def test_match_accepts_ids_with_type_prefix():
    assert ["customer", "user", None, None, None] == [
        SHOP.match(text) for text in ("customer:7", "user:a:b", "7", "customer:", "planet:7")
    ]
    assert {"customer", "product", "user", "order"} == SHOP.types


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"fields": {"a": "b"}, "type_of": {"x": "y"}, "pattern": "(x)"},
        {"fields": {"a": 5}},
        {"fields": "a"},
        {"pattern": "x"},
    ],
)
def test_id_scheme_requires_either_type_of_or_fields(options):
    with pytest.raises(InvalidArgument):
        IdScheme(name="x", **options)


class Shop:
    """A source whose functions record their arguments."""

    def __init__(self):
        self.asked = []

    async def fetch(self, key):
        self.asked.append(key)
        if key not in ROWS:
            raise EntityNotFound(key)
        return ROWS[key]

    async def fetch_customers(self, ids):
        self.asked.append(ids)
        return {int(one): {"id": int(one), "name": "Ada"} for one in ids if one == "7"}


async def test_reference_keys_have_type_prefix_and_entries_have_bare_id(make_resolver):
    """The entry's id is a number if the entity's id is one."""
    shop = Shop()
    resolver = make_resolver(Source(SHOP, fetch=shop.fetch))
    payload = {"orders": [{"id": 1, "customer_id": 7, "assignee": "u-9"}]}

    enriched = await resolver.enrich(payload, ReferenceOptions(include_references="all", reference_depth=2))

    assert [
        ("customer:7", {"reference_type": "customer", "id": 7, "name": "Ada", "assignee": "u-1"}),
        ("user:u-9", {"reference_type": "user", "id": "u-9", "status": "failed", "error": "Entity not found"}),
        ("user:u-1", {"reference_type": "user", "id": "u-1", "name": "Grace"}),
    ] == list(enriched["references"].items())
    assert ["customer:7", "user:u-9", "user:u-1"] == shop.asked
    assert enriched == await resolver.enrich(enriched, ReferenceOptions(include_references="all", reference_depth=2))


async def test_second_level_uses_entity_type_as_container_name(make_resolver):
    """`order.parent` applies to the fields of an order on the second level."""
    scheme = IdScheme(name="shop", fields={"ref_id": "order", "order.parent": "order"})
    rows = {"order:1": {"id": 1, "parent": 2}, "order:2": {"id": 2, "parent": 3}}

    async def fetch_many(ids):
        return {one: rows[f"order:{one}"] for one in ids}

    resolver = make_resolver(Source(scheme, fetch_many=fetch_many))
    enriched = await resolver.enrich({"ref_id": 1, "parent": 5}, ReferenceOptions(reference_depth=2))

    assert ["order:1", "order:2"] == list(enriched["references"])


async def test_source_with_one_type_is_queried_with_bare_ids(make_resolver):
    """Its answer may have numeric keys. Ids missing from it are failed references."""
    shop = Shop()
    scheme = IdScheme(name="customers", fields={"customer_id": "customer"})
    resolver = make_resolver(Source(scheme, fetch_many=shop.fetch_customers))

    enriched = await resolver.enrich({"a": [{"customer_id": 7}, {"customer_id": "8"}]})

    assert [["7", "8"]] == shop.asked
    assert {"reference_type": "customer", "id": 7, "name": "Ada"} == enriched["references"]["customer:7"]
    assert "failed" == enriched["references"]["customer:8"]["status"]
    assert {"id": 7, "name": "Ada"} == await resolver.fetch("customer:7")


async def test_resolver_uses_type_prefixed_keys_in_all_methods(make_resolver):
    """Covers query, resolve, types, the cache and its invalidation."""
    shop = Shop()
    resolver = make_resolver(Source(SHOP, fetch=shop.fetch))

    assert ROWS["customer:7"] == await resolver.fetch("customer:7")
    references = await resolver.resolve(["customer:7", "user:u-1", "7"])
    assert (7, "Grace") == (references["customer:7"]["id"], references["user:u-1"]["name"])
    assert ["7"] == list(references.failed)
    assert ["customer:7", "user:u-1"] == shop.asked
    assert (1, 1) == (resolver.invalidate("customer:7"), resolver.invalidate("user"))
    only = await resolver.enrich({"customer_id": 7, "assignee": "u-1"}, ReferenceOptions(reference_types=["user"]))
    assert ["user:u-1"] == list(only["references"])
    assert ("customer:7", "7", "user:u-1") == (
        resolver._key("customer_id", 7), resolver._key("note", 7), resolver._key("customer_id", "user:u-1"),
    )  # fmt: skip


async def test_subject_argument_is_converted_to_type_prefixed_id(make_resolver):
    """The answer about customer 7 does not reference customer 7."""
    shop = Shop()

    @with_references(resolver=make_resolver(Source(SHOP, fetch=shop.fetch)), subject="customer_id")
    async def customer(customer_id: int):
        return {"customer_id": customer_id, "last": {"customer_id": customer_id, "assignee": "u-1"}}

    answer = await customer(7, include_references=True)

    assert ["user:u-1"] == list(answer["references"])


def test_scan_finds_field_ids_in_other_mapping_and_array_classes():
    payload = collections.OrderedDict(
        product_ids=(3, collections.UserString("4")), more=collections.UserDict(customer_id=7)
    )

    assert ["product:3", "customer:7"] == keys(payload)
