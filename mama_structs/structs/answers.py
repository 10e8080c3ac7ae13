"""Answers about one entity and pages of a list: records with their chain height."""

import functools
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import attrs

from mama_structs.structs import entities
from mama_structs.structs.chain_json import JSON_NUMBER, OFF_WIRE, StructsModel, wire_name_metadata
from mama_structs.structs.ids import EntityId

R_co = TypeVar("R_co", bound=StructsModel, covariant=True)

# JSON keys of the record in an answer, if they differ from the class name.
_ANSWER_KEYS: dict[type[StructsModel], str] = {entities.GridRecord: "gridRecord"}
# JSON keys of the records in a page, if they differ from the class name.
_PAGE_KEYS: dict[type[StructsModel], str] = {
    entities.Address: "address",
    entities.GridRecord: "gridRecords",
    entities.StructAttributeRecord: "structAttributeRecords",
    entities.PlanetAttributeRecord: "planetAttributeRecords",
    entities.PermissionRecord: "permissionRecords",
    entities.GuildRankPermissionRecord: "guild_rank_permission_records",
    entities.InternalAddressAssociation: "internalAddressAssociation",
}


class RawAnswer(dict[str, Any]):
    """
    JSON object of an answer, not converted to a model, with the chain height.

    Args:
        payload: The JSON object.
        height: The chain's height, None if the node did not send it.

    """

    __slots__ = ("height",)

    height: int | None

    def __init__(self, payload: dict[str, Any], *, height: int | None = None) -> None:
        super().__init__(payload)
        self.height = height


@attrs.frozen(kw_only=True, repr=False)
class _GenericAnswer(StructsModel, Generic[R_co]):
    """
    Generic base of answers and pages.

    ``Answer[Guild]`` is a separate class with the JSON name of a guild.
    """

    height: int | None = attrs.field(default=None, eq=False, metadata=OFF_WIRE)

    if not TYPE_CHECKING:

        def __class_getitem__(cls, record: Any) -> Any:
            is_record = isinstance(record, type) and issubclass(record, StructsModel)
            return _make_class(cls, record) if is_record else super().__class_getitem__(record)

    def __reduce__(self) -> tuple[Any, ...]:
        _, (cls, values) = super().__reduce__()
        # No module contains ``Answer[Guild]`` as an attribute, so unpickling must create the class again.
        return _rebuild, (*vars(cls).get("_parts", (cls, None)), values)


@attrs.frozen(kw_only=True, repr=False)
class Answer(_GenericAnswer[R_co]):
    """
    The chain's answer for one entity, such as ``Answer[Guild]``.

    Args:
        entity: Its record.
        height: The height of the chain when it was read, None if the node did not send it.
            It is not a field of the JSON, and does not affect equality.

    """

    entity: R_co


@attrs.frozen(kw_only=True, repr=False)
class Pagination(StructsModel):
    """
    Position of a page within its list.

    Args:
        next_key: The key of the next page (base64), None for the last page.
        total: The number of records; 0 unless counting was requested.

    """

    next_key: str | None = attrs.field(default=None, metadata=wire_name_metadata("next_key"))
    total: int = 0


@attrs.frozen(kw_only=True, repr=False)
class EntityPage(_GenericAnswer[R_co]):
    """
    One page of a list, such as ``Page[Guild]``.

    It has records only, without the additional fields of an answer.

    Args:
        records: The records, in byte order of their ids.
        pagination: The position of the page, None if the node does not paginate this list.
        height: The height of the chain when it was read. It is not a field of the JSON and does not affect equality.

    """

    records: tuple[R_co, ...] = ()
    pagination: Pagination | None = None


@functools.cache
def _make_class(cls: type[Any], record: type[StructsModel]) -> type[Any]:
    if issubclass(cls, EntityPage):
        hint: Any = tuple[record, ...]  # type: ignore[valid-type]
        field = {
            "records": attrs.field(default=(), metadata=wire_name_metadata(_PAGE_KEYS.get(record, record.__name__)))
        }
    else:
        hint, field = (
            record,
            {"entity": attrs.field(metadata=wire_name_metadata(_ANSWER_KEYS.get(record, record.__name__)))},
        )
    name = f"{cls.__name__}[{record.__name__}]"
    body: dict[str, Any] = {"__module__": __name__, "__doc__": cls.__doc__, "_parts": (cls, record), **field}
    body["__annotations__"] = dict.fromkeys(field, hint)
    return attrs.frozen(kw_only=True, repr=False)(type(name, (cls,), body))


def _rebuild(cls: Any, record: type[StructsModel] | None, values: dict[str, Any]) -> Any:
    return (cls if record is None else cls[record])(**values)


@attrs.frozen(kw_only=True, repr=False)
class GridAnswer(Answer[R_co]):
    """An answer for an entity with power grid attributes, such as ``GridAnswer[Reactor]``."""

    grid_attributes: entities.GridAttributes | None = None


@attrs.frozen(kw_only=True, repr=False)
class PlayerAnswer(GridAnswer[entities.Player]):
    """The answer of ``/structs/player/{id}``."""

    player_inventory: entities.PlayerInventory | None = None


@attrs.frozen(kw_only=True, repr=False)
class PlanetAnswer(GridAnswer[entities.Planet]):
    """The answer of ``/structs/planet/{id}``."""

    planet_attributes: entities.PlanetAttributes | None = None


@attrs.frozen(kw_only=True, repr=False)
class StructAnswer(GridAnswer[entities.Struct]):
    """
    The answer of ``/structs/struct/{id}``.

    The defenders are the structs that protect this one.
    """

    struct_attributes: entities.StructAttributes | None = None
    struct_defenders: tuple[EntityId | None, ...] = ()


@attrs.frozen(kw_only=True, repr=False)
class AddressAnswer(entities.Address):
    """The answer of ``/structs/address/{address}``. It is an `Address` record itself."""

    height: int | None = attrs.field(default=None, eq=False, metadata=OFF_WIRE)

    @property
    def entity(self) -> entities.Address:
        """The record; this object itself."""
        return self


@attrs.frozen(kw_only=True, repr=False)
class AttributeAnswer(StructsModel):
    """The answer of ``/structs/struct_attribute/{id}/{name}`` and of its planet counterpart."""

    attribute: int = 0
    height: int | None = attrs.field(default=None, eq=False, metadata=OFF_WIRE)


@attrs.frozen(kw_only=True, repr=False)
class BlockHeightAnswer(StructsModel):
    """The answer of ``/blockheight``."""

    block_height: int = 0


@attrs.frozen(kw_only=True, repr=False)
class ErrorBody(StructsModel):
    """The body of an error. *code* is a gRPC code and, unlike other numbers, a JSON number."""

    code: int = attrs.field(default=0, metadata=JSON_NUMBER)
    message: str = ""
    details: tuple[Any, ...] = attrs.field(default=(), hash=False)
