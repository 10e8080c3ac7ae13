"""Answers about one entity: its record, what comes beside it, and the height it was read at."""

from typing import Any, Generic, TypeVar

import attrs

from mama_structs.structs.attributes import (
    GridAttributes,
    GridRecord,
    PlanetAttributes,
    PlayerInventory,
    StructAttributes,
)
from mama_structs.structs.entities import (
    Address,
    Agreement,
    Allocation,
    Fleet,
    Guild,
    GuildMembershipApplication,
    Infusion,
    Planet,
    Player,
    Provider,
    Reactor,
    Struct,
    Substation,
)
from mama_structs.structs.ids import EntityId
from mama_structs.structs.record import JSON_NUMBER, OFF_WIRE, Record, wire
from mama_structs.structs.struct_types import StructType

E_co = TypeVar("E_co", bound=Record, covariant=True)


class Envelope(dict[str, Any]):
    """
    A raw answer: the JSON object, and the height it was read at.

    Args:
        payload: The JSON object.
        height: The chain's height, None where the node did not say it.

    """

    __slots__ = ("height",)

    height: int | None

    def __init__(self, payload: dict[str, Any], *, height: int | None = None) -> None:
        super().__init__(payload)
        self.height = height


@attrs.frozen(kw_only=True, repr=False)
class Answer(Record, Generic[E_co]):
    """
    What the chain says about one entity.

    Args:
        entity: Its record.
        height: The height of the chain when it was read, None where the node did not say it.
            It is no part of the JSON, and two answers that differ only in it are equal.

    """

    entity: E_co
    height: int | None = attrs.field(default=None, eq=False, metadata=OFF_WIRE)


@attrs.frozen(kw_only=True, repr=False)
class GridAnswer(Answer[E_co]):
    """An answer about an entity that the power grid knows."""

    grid_attributes: GridAttributes | None = None


@attrs.frozen(kw_only=True, repr=False)
class GuildAnswer(Answer[Guild]):
    """The answer of ``/structs/guild/{id}``."""

    entity: Guild = attrs.field(metadata=wire("Guild"))


@attrs.frozen(kw_only=True, repr=False)
class PlayerAnswer(GridAnswer[Player]):
    """The answer of ``/structs/player/{id}``."""

    entity: Player = attrs.field(metadata=wire("Player"))
    player_inventory: PlayerInventory | None = None


@attrs.frozen(kw_only=True, repr=False)
class PlanetAnswer(GridAnswer[Planet]):
    """The answer of ``/structs/planet/{id}``."""

    entity: Planet = attrs.field(metadata=wire("Planet"))
    planet_attributes: PlanetAttributes | None = None


@attrs.frozen(kw_only=True, repr=False)
class ReactorAnswer(GridAnswer[Reactor]):
    """The answer of ``/structs/reactor/{id}``."""

    entity: Reactor = attrs.field(metadata=wire("Reactor"))


@attrs.frozen(kw_only=True, repr=False)
class SubstationAnswer(GridAnswer[Substation]):
    """The answer of ``/structs/substation/{id}``."""

    entity: Substation = attrs.field(metadata=wire("Substation"))


@attrs.frozen(kw_only=True, repr=False)
class StructAnswer(GridAnswer[Struct]):
    """The answer of ``/structs/struct/{id}``; the defenders are structs that protect this one."""

    entity: Struct = attrs.field(metadata=wire("Struct"))
    struct_attributes: StructAttributes | None = None
    struct_defenders: tuple[EntityId | None, ...] = ()


@attrs.frozen(kw_only=True, repr=False)
class AllocationAnswer(GridAnswer[Allocation]):
    """The answer of ``/structs/allocation/{id}``."""

    entity: Allocation = attrs.field(metadata=wire("Allocation"))


@attrs.frozen(kw_only=True, repr=False)
class InfusionAnswer(Answer[Infusion]):
    """The answer of ``/structs/infusion/{destinationId}/{address}``."""

    entity: Infusion = attrs.field(metadata=wire("Infusion"))


@attrs.frozen(kw_only=True, repr=False)
class AddressAnswer(Address):
    """The answer of ``/structs/address/{address}``: the one that is flat, record and answer at once."""

    height: int | None = attrs.field(default=None, eq=False, metadata=OFF_WIRE)

    @property
    def entity(self) -> Address:
        """The record, which is this answer itself."""
        return self


@attrs.frozen(kw_only=True, repr=False)
class FleetAnswer(Answer[Fleet]):
    """The answer of ``/structs/fleet/{id}``."""

    entity: Fleet = attrs.field(metadata=wire("Fleet"))


@attrs.frozen(kw_only=True, repr=False)
class ProviderAnswer(GridAnswer[Provider]):
    """The answer of ``/structs/provider/{id}``."""

    entity: Provider = attrs.field(metadata=wire("Provider"))


@attrs.frozen(kw_only=True, repr=False)
class AgreementAnswer(Answer[Agreement]):
    """The answer of ``/structs/agreement/{id}``."""

    entity: Agreement = attrs.field(metadata=wire("Agreement"))


@attrs.frozen(kw_only=True, repr=False)
class StructTypeAnswer(Answer[StructType]):
    """The answer of ``/structs/struct_type/{id}``."""

    entity: StructType = attrs.field(metadata=wire("StructType"))


@attrs.frozen(kw_only=True, repr=False)
class GuildMembershipApplicationAnswer(Answer[GuildMembershipApplication]):
    """The answer of ``/structs/guild_membership_application/{guildId}/{playerId}``."""

    entity: GuildMembershipApplication = attrs.field(metadata=wire("GuildMembershipApplication"))


@attrs.frozen(kw_only=True, repr=False)
class GridRecordAnswer(Answer[GridRecord]):
    """The answer of ``/structs/grid/{attributeId}``; the value of an unknown id is 0."""

    entity: GridRecord = attrs.field(metadata=wire("gridRecord"))


@attrs.frozen(kw_only=True, repr=False)
class AttributeAnswer(Record):
    """The answer of ``/structs/struct_attribute/{id}/{name}`` and its planet twin."""

    attribute: int = 0
    height: int | None = attrs.field(default=None, eq=False, metadata=OFF_WIRE)


@attrs.frozen(kw_only=True, repr=False)
class BlockHeightAnswer(Record):
    """The answer of ``/blockheight``."""

    block_height: int = 0


@attrs.frozen(kw_only=True, repr=False)
class ErrorBody(Record):
    """The body of an error; *code* is a gRPC code and, unlike all else, a JSON number."""

    code: int = attrs.field(default=0, metadata=JSON_NUMBER)
    message: str = ""
    details: tuple[Any, ...] = attrs.field(default=(), hash=False)
