"""Payloads in which the ids that a detector must find are known beforehand."""

from __future__ import annotations

import json
from typing import Any, Final

import attrs
from hypothesis import strategies as st

from mama_structs.structs.ids import MAX_INDEX, EntityId, EntityType
from mama_structs.testing._schema import TABLES

Draw = st.DrawFn

_G, _P, _L, _R = EntityType.GUILD, EntityType.PLAYER, EntityType.PLANET, EntityType.REACTOR
_S, _T, _A, _F = EntityType.SUBSTATION, EntityType.STRUCT, EntityType.ALLOCATION, EntityType.FLEET
_WITH_IDS: Final = tuple(member for member in EntityType if member.has_ids)

# What a field may hold; direct relations first.
_PRIMARY: Final = {
    "owner": (_P,), "guildId": (_G,), "planetId": (_L,), "fleetId": (_F,), "substationId": (_S,),
    "primaryReactorId": (_R,), "entrySubstationId": (_S,), "reactorId": (_R,), "locationId": (_L, _F),
    "providerId": (EntityType.PROVIDER,), "allocationId": (_A,), "sourceObjectId": (_P, _R, _S),
    "destinationId": (_R, _S, _T), "controller": (_P,),
    "guild_id": (_G,), "planet_id": (_L,), "fleet_id": (_F,), "substation_id": (_S,), "primary_reactor_id": (_R,),
    "entry_substation_id": (_S,), "provider_id": (EntityType.PROVIDER,), "location_id": (_L, _F),
}  # fmt: skip
_SECONDARY: Final = {
    "playerId": (_P,), "player_id": (_P,), "proposer": (_P,), "commandStruct": (_T,), "command_struct": (_T,),
    "locationListStart": (_F,), "locationListLast": (_F,), "locationListForward": (_F,), "locationListBackward": (_F,),
    "attackerStructId": (_T,), "objectId": _WITH_IDS,
}  # fmt: skip
_SCALARS: Final = _PRIMARY | _SECONDARY
_HINTED: Final = {name: types for name, types in _SCALARS.items() if types != _WITH_IDS}
_ARRAYS: Final = ("space", "air", "land", "water", "structDefenders", "defending_struct_ids")
# Names that promise nothing; some need escapes in a JSON pointer.
_NEUTRAL: Final = ("related", "target", "nearby", "a/b", "m~n", "~1", "", "대상", "0")
_DENIED: Final = (
    "pfp", "pfpClientRenderAttributes", "endpoint", "name", "username", "description", "message", "error", "version",
    "schema_version", "api_version", "coordinates", "position", "range", "timestamp", "created_at", "updated_at",
    "next_key", "total",
)  # fmt: skip
_NOISE: Final[st.SearchStrategy[Any]] = st.sampled_from(
    [None, True, False, 0, 11, -1.5, "", "0", "active", "structs1qypqxpq9", "0.040000000000000000", [], {}, [None, 7]]
)

# The fields of each type's records that hold references.
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
        pointers: The JSON pointers (RFC 6901) of all its places, in document order;
            an id inside JSON in a string is at the string.
        primary: Whether one of the places is a direct relation.

    """

    id: EntityId
    pointers: tuple[str, ...]
    primary: bool


@attrs.frozen
class PlantedPayload:
    """
    A payload and what a detector must find in it: exactly *references*.

    Args:
        payload: The payload, as JSON would give it.
        references: The ids, each once, in the order of their first places.
        look_alikes: The texts in it that look like ids and are not to be found.
        subject: The id of the entity that the payload is about, which is no reference to itself; None without one.
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


@attrs.define
class _Planter:
    """Draws the members of payloads and remembers what it planted where."""

    draw: Draw
    own: frozenset[str] = frozenset()
    planted: dict[str, list[tuple[str, bool]]] = attrs.field(factory=dict)
    look_alikes: list[str] = attrs.field(factory=list)

    def id_text(self, types: tuple[EntityType, ...]) -> str:
        member: EntityType = self.draw(st.sampled_from(types))
        # What the payload is about is met again more often than chance would have it.
        again = [one for one in sorted(self.own) if EntityId.parse(one).type is member]
        met_again = self.draw(st.booleans()) if again else False
        if met_again:
            return again[0]
        return str(EntityId(member, self.draw(st.integers(1, 30) | st.sampled_from([2**53 + 1, MAX_INDEX]))))

    def plant(self, types: tuple[EntityType, ...], pointer: str, *, primary: bool = False) -> str:
        text = self.id_text(types)
        self.note(text, pointer, primary=primary)
        return text

    def note(self, text: str, pointer: str, *, primary: bool = False) -> None:
        if text in self.own:
            self.look_alikes.append(text)
        else:
            self.planted.setdefault(text, []).append((pointer, primary))

    def mislead(self, text: str) -> str:
        self.look_alikes.append(text)
        return text

    def array(self, pointer: str) -> list[str]:
        filled = self.draw(st.lists(st.booleans(), max_size=4))
        return [self.plant((_T,), f"{pointer}/{at}") if full else "" for at, full in enumerate(filled)]

    def field(self, name: str, pointer: str) -> Any:
        if name in _ARRAYS:
            return self.array(pointer)
        return self.plant(_SCALARS[name], pointer, primary=name in _PRIMARY)

    def mapping(self, pointer: str, depth: int) -> dict[str, Any]:
        members: dict[str, Any] = {}
        for kind in self.draw(st.lists(st.sampled_from(_KINDS), max_size=7)):
            name = self.draw(_NAMES[kind])
            if name not in members:
                members[name] = self.member(kind, name, f"{pointer}/{escape(name)}", depth)
        return members

    def member(self, kind: str, name: str, at: str, depth: int) -> Any:  # noqa: PLR0911 - one line for each kind
        if kind in _MISLEADING:
            return self.misleading(kind, name)
        match kind:
            case "field":
                return self.field(name, at)
            case "neutral":
                return self.plant(_WITH_IDS, at)
            case "bare":
                return self.bare(at)
            case "embedded":
                return self.embedded(at)
            case "mapping" if depth:
                return self.mapping(at, depth - 1)
            # Not at the top: an array of objects there makes a list of rows of the payload.
            case "list" if 0 < depth < _DEPTH:
                rows = range(self.draw(st.integers(0, 3)))
                return [self.mapping(f"{at}/{row}", depth - 1) for row in rows]
        return self.draw(_NOISE)

    def misleading(self, kind: str, name: str) -> Any:
        match kind:
            case "denied":
                return self.mislead(self.id_text(_WITH_IDS))
            case "mismatched":
                wrong = tuple(member for member in _WITH_IDS if member not in _HINTED[name])
                return self.mislead(self.id_text(wrong))
            case "look-alike":
                return self.mislead(self.draw(_LOOK_ALIKES))
        return {"next_key": self.mislead(self.id_text(_WITH_IDS)), "first": [self.mislead("1-11")], "total": "2"}

    def bare(self, at: str) -> int | str:
        """Give the index of a struct without its type; 0 stands for none."""
        index: int = self.draw(st.integers(0, 30))
        if index:
            self.note(f"5-{index}", at)
        return index if self.draw(st.booleans()) else str(index)

    def embedded(self, at: str) -> str:
        """Write JSON into a string: what is in it stands where the string stands."""
        if self.draw(st.booleans()):
            return self.mislead('{"owner": "1-11"')
        content = {"owner": self.plant((_P,), at, primary=True), "land": ["", self.plant((_T,), at)], "name": "2-1"}
        return json.dumps(content)

    def references(self) -> tuple[PlantedReference, ...]:
        return tuple(
            PlantedReference(
                EntityId.parse(text), tuple(pointer for pointer, _ in places), any(primary for _, primary in places)
            )
            for text, places in self.planted.items()
        )


_DEPTH: Final = 3
_MISLEADING: Final = frozenset({"denied", "mismatched", "look-alike", "pagination"})
_LOOK_ALIKES: Final = st.sampled_from(
    ["01-1", "1-0", " 1-1", "12-3", "2024-01", "11-1-194", "6-53@1-194", "uguild.0-1", "1-11\n", "1-1\u0661",
     "7-1", "8-2", f"1-{MAX_INDEX + 1}"]
)  # fmt: skip
_NAMES: Final = {
    "field": st.sampled_from([*_SCALARS, *_ARRAYS]),
    "neutral": st.sampled_from(_NEUTRAL),
    "denied": st.sampled_from(_DENIED),
    "mismatched": st.sampled_from(tuple(_HINTED)),
    "look-alike": st.sampled_from([*_NEUTRAL, *_SCALARS]),
    "bare": st.just("protectedStructIndex"),
    "pagination": st.just("pagination"),
    "embedded": st.sampled_from(["map", "detail"]),
    "mapping": st.sampled_from(["attributes", "nested", "a/b", "outer~inner"]),
    "list": st.sampled_from(["rows", "events"]),
    "noise": st.sampled_from(["maxOre", "status", "gridAttributes", "index"]),
}
_KINDS: Final = ("field", "field", "field", *(kind for kind in _NAMES if kind != "field"))


def escape(name: str) -> str:
    """Write a key as a part of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


@st.composite
def payloads(draw: Draw) -> PlantedPayload:
    """
    Give payloads of any nesting with ids under many fields, among much that must not be taken for ids.

    Some are about an entity: ``{"Player": {"id": ..., ...}, ...}``, with that id elsewhere too.
    """
    subject = draw(st.none() | st.builds(EntityId, st.sampled_from(_WITH_IDS), st.integers(1, 30)))
    planter = _Planter(draw, own=frozenset() if subject is None else frozenset([str(subject)]))
    payload: dict[str, Any] = {}
    if subject is not None:
        key = TABLES[subject.type].key
        payload[key] = {"id": str(subject), **planter.mapping(f"/{key}", _DEPTH - 1)}
    # Beside the entity the usual siblings; without one the payload's own members.
    payload |= planter.mapping("", _DEPTH)
    return PlantedPayload(payload, planter.references(), tuple(planter.look_alikes), subject=subject)


@st.composite
def list_payloads(  # noqa: D417 - callers do not see draw
    draw: Draw, *, min_size: int = 0, max_size: int = 5
) -> PlantedPayload:
    """
    Give the chain's lists: rows of one type, and ``pagination``.

    Args:
        min_size: The fewest rows.
        max_size: The most rows.

    """
    kind = draw(st.sampled_from(tuple(_ROW_FIELDS)))
    indexes = draw(st.lists(st.integers(1, 30), min_size=min_size, max_size=max_size, unique=True))
    own = tuple(EntityId(kind, index) for index in sorted(indexes, key=str))
    planter = _Planter(draw, own=frozenset(map(str, own)))
    key = TABLES[kind].key
    rows = []
    for number, row_id in enumerate(own):
        row: dict[str, Any] = {"id": str(row_id)}
        for name in _ROW_FIELDS[kind]:
            row[name] = planter.field(name, f"/{key}/{number}/{name}") if draw(st.booleans()) else ""
        row["pfp"] = planter.mislead(planter.id_text(_WITH_IDS))
        rows.append(row)
    next_key = draw(st.none() | st.just("MS0xMg==") | st.builds(planter.mislead, st.just("1-12")))
    payload = {key: rows, "pagination": {"next_key": next_key, "total": str(len(rows))}}
    return PlantedPayload(payload, planter.references(), tuple(planter.look_alikes), own_ids=own)
