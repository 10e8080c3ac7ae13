"""
Hypothesis strategies for payloads with known ids.

They share no code with the detector, so that tests can verify the detector with them.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import attrs
from hypothesis import strategies as st

from mama_structs.structs.ids import MAX_INDEX, EntityId, EntityType
from mama_structs.testing.node.world import CHAIN_STORES
from mama_structs.testing.strategies.entities import TYPES_WITH_IDS

_G, _P, _L, _R = EntityType.GUILD, EntityType.PLAYER, EntityType.PLANET, EntityType.REACTOR
_S, _T, _A, _F = EntityType.SUBSTATION, EntityType.STRUCT, EntityType.ALLOCATION, EntityType.FLEET

# The entity types that each field may refer to. `_SECONDARY_FIELDS` are not direct relations.
_PRIMARY_FIELDS: Final = {
    "owner": (_P,), "guildId": (_G,), "planetId": (_L,), "fleetId": (_F,), "substationId": (_S,),
    "primaryReactorId": (_R,), "entrySubstationId": (_S,), "reactorId": (_R,), "locationId": (_L, _F),
    "providerId": (EntityType.PROVIDER,), "allocationId": (_A,), "sourceObjectId": (_P, _R, _S),
    "destinationId": (_R, _S, _T), "controller": (_P,),
    "guild_id": (_G,), "planet_id": (_L,), "fleet_id": (_F,), "substation_id": (_S,), "primary_reactor_id": (_R,),
    "entry_substation_id": (_S,), "provider_id": (EntityType.PROVIDER,), "location_id": (_L, _F),
}  # fmt: skip
_SECONDARY_FIELDS: Final = {
    "playerId": (_P,), "player_id": (_P,), "proposer": (_P,), "commandStruct": (_T,), "command_struct": (_T,),
    "locationListStart": (_F,), "locationListLast": (_F,), "locationListForward": (_F,), "locationListBackward": (_F,),
    "attackerStructId": (_T,), "objectId": TYPES_WITH_IDS,
}  # fmt: skip
_SCALAR_FIELDS: Final = _PRIMARY_FIELDS | _SECONDARY_FIELDS
_HINTED_FIELDS: Final = {name: types for name, types in _SCALAR_FIELDS.items() if types != TYPES_WITH_IDS}
_ARRAY_FIELDS: Final = ("space", "air", "land", "water", "structDefenders", "defending_struct_ids")
# Field names that do not imply an entity type. Some need escapes in a JSON pointer.
_UNHINTED_FIELDS: Final = ("related", "target", "nearby", "a/b", "m~n", "~1", "", "대상", "0")
_DENIED_FIELDS: Final = (
    "pfp", "pfpClientRenderAttributes", "endpoint", "name", "username", "description", "message", "error", "version",
    "schema_version", "api_version", "coordinates", "position", "range", "timestamp", "created_at", "updated_at",
    "next_key", "total",
)  # fmt: skip
_OTHER_VALUES: Final[st.SearchStrategy[Any]] = st.sampled_from(
    [None, True, False, 0, 11, -1.5, "", "0", "active", "structs1qypqxpq9", "0.040000000000000000", [], {}, [None, 7]]
)

# The fields with references in the records of each type.
_ROW_FIELDS: Final = {
    _G: ("owner", "primaryReactorId", "entrySubstationId"),
    _P: ("guildId", "substationId", "planetId", "fleetId"),
    _L: ("owner", "space", "air", "land", "water", "locationListStart", "locationListLast"),
    _R: ("guildId", "owner"),
    _S: ("owner",),
    _T: ("owner", "locationId"),
    _A: ("sourceObjectId", "destinationId", "controller"),
    _F: ("owner", "locationId", "locationListForward", "locationListBackward", "space", "land", "commandStruct"),
    EntityType.PROVIDER: ("substationId", "owner"),
    EntityType.AGREEMENT: ("providerId", "allocationId", "owner"),
}


@attrs.frozen
class PlantedReference:
    """
    An id that a detector must find.

    Args:
        id: The id.
        pointers: The JSON pointers (RFC 6901) of all its occurrences, in document order;
            an id inside JSON text has the pointer of that text.
        primary: Whether one of the occurrences is a direct relation.

    """

    id: EntityId
    pointers: tuple[str, ...]
    primary: bool


@attrs.frozen
class PlantedPayload:
    """
    A payload, and the exact *references* that a detector must find in it.

    Args:
        payload: The payload, as parsed from JSON.
        references: The deduplicated ids, in the order of their first occurrences.
        look_alikes: The texts that look like ids but must not be found.
        subject: The id of the payload's own entity, which is not a reference; None without one.
        own_ids: For a list: the rows' own ids.

    """

    payload: dict[str, Any]
    references: tuple[PlantedReference, ...]
    look_alikes: tuple[str, ...]
    subject: EntityId | None = None
    own_ids: tuple[EntityId, ...] = ()

    @property
    def ids(self) -> list[str]:
        """The ids of the references as text, in document order."""
        return [str(reference.id) for reference in self.references]


@attrs.frozen
class _DraftValue:
    """
    A value of a payload under construction, with the ids in it.

    The flag of an id is True for a direct relation, False for another reference, and None for a look-alike.
    """

    value: Any
    ids: tuple[tuple[str, bool | None], ...]


def _entity_ids(types: Iterable[EntityType]) -> st.SearchStrategy[str]:
    # Use few indexes, so that ids repeat.
    indexes = st.integers(1, 5) | st.sampled_from([2**53 + 1, MAX_INDEX])
    return st.builds(EntityId, st.sampled_from([*types]), indexes).map(str)


def _reference_values(types: Iterable[EntityType], *, primary: bool = False) -> st.SearchStrategy[_DraftValue]:
    return _entity_ids(types).map(lambda text: _DraftValue(text, ((text, primary),)))


def _look_alike_values(texts: st.SearchStrategy[str]) -> st.SearchStrategy[_DraftValue]:
    return texts.map(lambda text: _DraftValue(text, ((text, None),)))


def _make_json_text(owner: str, struct: str) -> _DraftValue:
    """Return a JSON document as a string. Each id in the document has the JSON pointer of the whole string."""
    text = json.dumps({"owner": owner, "land": ["", struct], "name": "2-1"})
    return _DraftValue(text, ((owner, True), (struct, False)))


def _make_bare_index(index: int, kind: type) -> _DraftValue:
    """Return a struct's index without its type prefix. It is a reference to the struct, unless the index is 0."""
    return _DraftValue(kind(index), ((f"5-{index}", False),) if index else ())


def _pick_field(fields: Mapping[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[tuple[str, Any]]:
    return st.sampled_from([*fields]).flatmap(lambda name: st.tuples(st.just(name), fields[name]))


def _pick_name(names: Iterable[str], values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[str, Any]]:
    return st.tuples(st.sampled_from([*names]), values)


_MAX_DEPTH: Final = 3
_REFERENCE_FIELDS: Final[Mapping[str, st.SearchStrategy[Any]]] = {
    **{name: _reference_values(types, primary=name in _PRIMARY_FIELDS) for name, types in _SCALAR_FIELDS.items()},
    **{name: st.lists(_reference_values((_T,)) | st.just(""), max_size=4) for name in _ARRAY_FIELDS},
}
_MISMATCHED_FIELDS: Final = {
    name: _look_alike_values(_entity_ids(one for one in TYPES_WITH_IDS if one not in types))
    for name, types in _HINTED_FIELDS.items()
}
_DENIED_IDS: Final = _look_alike_values(_entity_ids(TYPES_WITH_IDS))
_LOOK_ALIKES: Final = st.sampled_from(
    ["01-1", "1-0", " 1-1", "12-3", "2024-01", "11-1-194", "6-53@1-194", "uguild.0-1", "1-11\n", "1-1\u0661",
     "7-1", "8-2", f"1-{MAX_INDEX + 1}"]
)  # fmt: skip
_PAGINATION: Final = st.fixed_dictionaries(
    {"next_key": _DENIED_IDS, "first": st.tuples(_look_alike_values(st.just("1-11"))).map(list), "total": st.just("2")}
)
_MEMBER_STRATEGIES: Final = (
    # Repeat these members three times, so that they are chosen more often.
    *(_pick_field(_REFERENCE_FIELDS) for _ in range(3)),
    _pick_name(_UNHINTED_FIELDS, _reference_values(TYPES_WITH_IDS)),
    _pick_name(_DENIED_FIELDS, _DENIED_IDS),
    _pick_field(_MISMATCHED_FIELDS),
    _pick_name([*_UNHINTED_FIELDS, *_SCALAR_FIELDS], _look_alike_values(_LOOK_ALIKES)),
    _pick_name(["protectedStructIndex"], st.builds(_make_bare_index, st.integers(0, 9), st.sampled_from([int, str]))),
    _pick_name(["pagination"], _PAGINATION),
    _pick_name(["map", "detail"], st.builds(_make_json_text, _entity_ids((_P,)), _entity_ids((_T,)))),
    _pick_name(["map", "detail"], _look_alike_values(st.just('{"owner": "1-11"'))),
    _pick_name(["maxOre", "status", "gridAttributes", "index"], _OTHER_VALUES),
)


@functools.cache
def _mappings(depth: int) -> st.SearchStrategy[dict[str, Any]]:
    members = [*_MEMBER_STRATEGIES]
    if depth:
        members.append(_pick_name(["attributes", "nested", "a/b", "outer~inner"], _mappings(depth - 1)))
    # Add no arrays of objects at the top level, because they would make the payload a list of rows.
    if 0 < depth < _MAX_DEPTH:
        members.append(_pick_name(["rows", "events"], st.lists(_mappings(depth - 1), max_size=3)))
    return st.lists(st.one_of(members), max_size=7).map(dict)


def _escape_pointer_key(name: str) -> str:
    """Escape a key for use in a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def _build_payload(tree: dict[str, Any], own: Collection[EntityId] = (), **about: Any) -> PlantedPayload:
    """
    Build a payload from a tree of draft values, with the JSON pointers of the ids in it.

    Ids in *own* are not references.
    """
    found: dict[str, list[tuple[str, bool]]] = {}
    look_alikes: list[str] = []

    def write(node: Any, pointer: str) -> Any:
        if isinstance(node, dict):
            return {name: write(member, f"{pointer}/{_escape_pointer_key(name)}") for name, member in node.items()}
        if isinstance(node, list):
            return [write(member, f"{pointer}/{at}") for at, member in enumerate(node)]
        if not isinstance(node, _DraftValue):
            return node
        for text, primary in node.ids:
            if primary is None or text in map(str, own):
                look_alikes.append(text)
            else:
                found.setdefault(text, []).append((pointer, primary))
        return node.value

    payload = write(tree, "")
    references = [
        PlantedReference(EntityId.parse(text), tuple(at for at, _ in places), any(primary for _, primary in places))
        for text, places in found.items()
    ]
    return PlantedPayload(payload, tuple(references), tuple(look_alikes), **about)


def payloads() -> st.SearchStrategy[PlantedPayload]:
    """
    Return a strategy for nested payloads with ids in many fields and many look-alikes.

    Some payloads describe an entity: ``{"Player": {"id": ..., ...}, ...}``. Its id may also occur elsewhere.
    """

    def about(subject: EntityId, record: dict[str, Any], beside: dict[str, Any], met_again: bool) -> PlantedPayload:  # noqa: FBT001 - drawn by Hypothesis
        if met_again and (named := _build_payload(beside).references):
            subject = named[0].id
        entity = {CHAIN_STORES[subject.type].key: {"id": str(subject), **record}}
        return _build_payload(entity | beside, [subject], subject=subject)

    subjects = st.builds(EntityId, st.sampled_from(TYPES_WITH_IDS), st.integers(1, 30))
    # Members of a payload: those next to the entity if the payload describes one, otherwise all members.
    members = _mappings(_MAX_DEPTH)
    return members.map(_build_payload) | st.builds(about, subjects, _mappings(_MAX_DEPTH - 1), members, st.booleans())


def list_payloads(*, min_size: int = 0, max_size: int = 5) -> st.SearchStrategy[PlantedPayload]:
    """
    Return a strategy for list answers of the chain: rows of one type, and ``pagination``.

    Args:
        min_size: Minimum number of rows.
        max_size: Maximum number of rows.

    """

    def build_strategy(kind: EntityType) -> st.SearchStrategy[PlantedPayload]:
        fields = {name: _REFERENCE_FIELDS[name] | st.just("") for name in _ROW_FIELDS[kind]}
        row = st.fixed_dictionaries(fields | {"pfp": _DENIED_IDS})
        rows = st.dictionaries(st.integers(1, 5) | st.integers(1, 30), row, min_size=min_size, max_size=max_size)
        next_keys = st.sampled_from([None, "MS0xMg=="]) | _look_alike_values(st.just("1-12"))
        return st.builds(listed, st.just(kind), rows, next_keys)

    def listed(kind: EntityType, rows: dict[int, dict[str, Any]], next_key: Any) -> PlantedPayload:
        own = tuple(EntityId(kind, index) for index in sorted(rows, key=str))
        page = [{"id": str(one), **rows[one.index]} for one in own]
        pagination = {"next_key": next_key, "total": str(len(rows))}
        return _build_payload({CHAIN_STORES[kind].key: page, "pagination": pagination}, own, own_ids=own)

    return st.sampled_from([*_ROW_FIELDS]).flatmap(build_strategy)
