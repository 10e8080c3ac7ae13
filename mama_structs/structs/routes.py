"""Requests to the chain as pure values: routes, and validation of arguments. Nothing is sent here."""

import base64
import enum
import re
from collections.abc import Mapping
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import attrs

from mama_structs._internal import validation as _check
from mama_structs.errors import InvalidArgument, MalformedResponse, repr_short
from mama_structs.structs import entities
from mama_structs.structs.answers import (
    Answer,
    EntityPage,
    GridAnswer,
    Pagination,
    PlanetAnswer,
    PlayerAnswer,
    StructAnswer,
)
from mama_structs.structs.chain_json import StructsModel, get_wire_name, structure
from mama_structs.structs.ids import MAX_INDEX, EntityId, EntityType

N = TypeVar("N", bound=enum.StrEnum)
R_co = TypeVar("R_co", bound=StructsModel, covariant=True)

_ADDRESS_PATTERN = re.compile(r"[a-z0-9]{3,90}", re.ASCII)
_ATTRIBUTE_ID_PATTERN = re.compile(r"(0|[1-9][0-9]?)-([0-9]+-[0-9]+)", re.ASCII)
_MAX_PAGE_KEY_CHARS = 4096

# --- validation of arguments -----------------------------------------------------------------------------------------


def parse_entity_id(value: EntityId | str, *types: EntityType) -> EntityId:
    """Return an id with a type in *types* (any type by default), or raise `InvalidArgument`."""
    entity_id = EntityId.parse(value)  # type: ignore[arg-type]  # parse() also accepts an EntityId
    if types and entity_id.type not in types:
        wanted = " or ".join(wanted.value for wanted in types)
        raise InvalidArgument(
            f"{entity_id} is the id of a {entity_id.type.value}, not of a {wanted}",
            hint=f"ids of this type begin with {' or '.join(f'{wanted.code}-' for wanted in types)}",
        )
    return entity_id


def check_address(text: str) -> str:
    """
    Return an account address, or raise `InvalidArgument`.

    It becomes part of a path without escaping.
    """
    if not isinstance(text, str) or not _ADDRESS_PATTERN.fullmatch(text):
        raise InvalidArgument(
            f"an address must be of 3 to 90 lower-case letters and digits, got {repr_short(text)}",
            hint="such as structs1…",
        )
    return text


def parse_attribute_id(text: str, names: type[enum.StrEnum]) -> str:
    """Return an attribute id such as ``11-1-194``, or raise `InvalidArgument`."""
    matched = _ATTRIBUTE_ID_PATTERN.fullmatch(text) if isinstance(text, str) else None
    if matched is None or int(matched[1]) >= len(names):
        raise InvalidArgument(
            f"an attribute id must be an attribute's number and an entity id, got {repr_short(text)}",
            hint=f"such as 11-1-194, the number being below {len(names)}",
        )
    return f"{int(matched[1])}-{EntityId.parse(matched[2])}"


def parse_attribute_name(name: str, names: type[N]) -> N:
    """
    Return an attribute by name, or raise `InvalidArgument`.

    The chain would read an unknown name as attribute 0.
    """
    try:
        return names(name)
    except ValueError:
        raise InvalidArgument(
            f"there is no attribute {repr_short(name)}", hint=f"one of {', '.join(member.value for member in names)}"
        ) from None


def decode_page_key(key: object) -> bytes | None:
    """Return the list position that a page key encodes, or None if the key is too long or not base64."""
    if not isinstance(key, str) or not 0 < len(key) <= _MAX_PAGE_KEY_CHARS:
        return None
    try:
        return base64.b64decode(key, validate=True)
    except ValueError:
        return None


def make_page_query(
    *,
    key: str | None = None,
    limit: int = 100,
    offset: int | None = None,
    reverse: bool = False,
    count_total: bool = False,
) -> tuple[tuple[str, str], ...]:
    """
    Return the query parameters of one page.

    They always include a limit, because without one the node counts its whole store.
    """
    if key is not None and offset is not None:
        raise InvalidArgument("key and offset exclude each other", hint="give key to go on, offset to begin somewhere")
    query = [("pagination.limit", str(_check.check_integer("limit", limit, 1, MAX_INDEX)))]
    if key is not None:
        if decode_page_key(key) is None:
            raise InvalidArgument(f"key must be base64 text, got {repr_short(key)}", hint="give the next_key of a page")
        query.append(("pagination.key", key))
    if offset is not None:
        query.append(("pagination.offset", str(_check.check_integer("offset", offset, 0, MAX_INDEX))))
    for name, flag in (("reverse", reverse), ("count_total", count_total)):
        if _check.check_bool(name, flag):
            query.append((f"pagination.{name}", "true"))
    return tuple(query)


# --- requests ---------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class ChainRequest:
    """A GET request: a path of safe characters, and the required field of the answer."""

    path: str
    key: str
    # The requested id. None if the request cannot fail because of an unknown id.
    requested_id: str | None = None
    # The query parameters, not yet encoded.
    query: tuple[tuple[str, str], ...] = ()

    @property
    def target(self) -> str:
        """
        The path with the query.

        Reserved characters are escaped, including ``+``, ``/`` and ``=`` of base64.
        """
        if not self.query:
            return self.path
        return self.path + "?" + "&".join(f"{name}={quote(value, safe='')}" for name, value in self.query)


def make_entity_request(model: type[StructsModel], *segments: str, requested_id: str) -> ChainRequest:
    """
    Return the request for the entity at the path *segments*.

    *model* is the type of its answer.
    """
    return ChainRequest(path="/".join(("/structs", *segments)), key=_item_key(model), requested_id=requested_id)


def check_answer_entity(payload: Mapping[str, Any], model: type[StructsModel], **expected: str) -> None:
    """Raise `MalformedResponse` unless the fields of the entity in the answer equal *expected*."""
    key = _item_key(model)
    record, path = (payload[key], f"$.{key}") if issubclass(model, Answer) else (payload, "$")
    if not isinstance(record, dict):
        raise MalformedResponse("must be an object", path=path)
    for name, value in expected.items():
        if record.get(name) != value:
            raise MalformedResponse(f"must be {value!r}, which was asked for", path=f"{path}.{name}")


def _item_key(model: type[StructsModel]) -> str:
    """Return the JSON key of the entity in an answer, or of the first field if the answer has no separate entity."""
    fields = attrs.fields_dict(model)
    return get_wire_name(next(fields[name] for name in ("entity", "address", "attribute") if name in fields))


@attrs.frozen
class ListRoute(Generic[R_co]):
    """Route that returns a list of records, and the class of these records."""

    name: str
    record: type[R_co]

    @property
    def page_model(self) -> type[EntityPage[R_co]]:
        """The model of a page."""
        pages: Any = EntityPage
        return pages[self.record]  # type: ignore[no-any-return]

    @property
    def key(self) -> str:
        """The JSON name of a page's records."""
        return get_wire_name(attrs.fields_dict(self.page_model)["records"])

    def make_request(self, *segments: str, query: tuple[tuple[str, str], ...]) -> ChainRequest:
        """Return the request for one page."""
        return ChainRequest(path="/".join((f"/structs/{self.name}", *segments)), key=self.key, query=query)

    def check_next_key(self, payload: Mapping[str, Any], *, after: str | None) -> str | None:
        """
        Validate the paging information of a page, but not its records.

        Return the key of the next page, None after the last one.
        """
        if not isinstance(payload[self.key], list):
            raise MalformedResponse("must be an array", path=f"$.{self.key}")
        pagination = structure({"pagination": payload.get("pagination")}, _PageFields).pagination
        key = pagination.next_key if pagination else None
        if not key:
            return None
        place = decode_page_key(key)
        # Page keys must ascend in byte order, or paging would not end. The first page may have any next key.
        if place is None or (after is not None and place <= (decode_page_key(after) or b"")):
            raise MalformedResponse("must be a later place in base64", path="$.pagination.next_key")
        return key


@attrs.frozen(kw_only=True, repr=False)
class _PageFields(StructsModel):
    """The fields of every page except its records."""

    pagination: Pagination | None = None


ANSWER_MODELS: Mapping[EntityType, type[Answer[Any]]] = {
    EntityType.GUILD: Answer[entities.Guild],
    EntityType.PLAYER: PlayerAnswer,
    EntityType.PLANET: PlanetAnswer,
    EntityType.REACTOR: GridAnswer[entities.Reactor],
    EntityType.SUBSTATION: GridAnswer[entities.Substation],
    EntityType.STRUCT: StructAnswer,
    EntityType.ALLOCATION: GridAnswer[entities.Allocation],
    EntityType.FLEET: Answer[entities.Fleet],
    EntityType.PROVIDER: GridAnswer[entities.Provider],
    EntityType.AGREEMENT: Answer[entities.Agreement],
}
"""The model of the answer for each type with ``type-index`` ids."""

LIST_ROUTES: Mapping[str, ListRoute[Any]] = {
    **{kind: ListRoute(kind.value, getattr(entities, kind.capitalize())) for kind in EntityType},
    "struct_type": ListRoute("struct_type", entities.StructType),
}
"""The lists of all entities, by the name of the type."""


def get_list_route(name: EntityType | str) -> ListRoute[Any]:
    """Return the route for the list of all entities of a type, or raise `InvalidArgument`."""
    listing = LIST_ROUTES.get(name) if isinstance(name, str) else None
    if listing is None:
        raise InvalidArgument(
            f"there is no list of {repr_short(name)}", hint=f"one of {', '.join(sorted(LIST_ROUTES))}"
        )
    return listing
