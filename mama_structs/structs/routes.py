"""The chain's routes as tables, and requests built from them: pure values."""

from collections.abc import Mapping
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import attrs

from mama_structs.errors import MalformedResponse
from mama_structs.structs import answers, attributes, entities, pages, struct_types
from mama_structs.structs.arguments import place_of
from mama_structs.structs.convert import structure
from mama_structs.structs.ids import EntityType
from mama_structs.structs.record import Record

A_co = TypeVar("A_co", bound=Record, covariant=True)
R_co = TypeVar("R_co", bound=Record, covariant=True)


@attrs.frozen(kw_only=True)
class Request:
    """
    One GET.

    Args:
        path: The path behind the base URL, made of safe characters only.
        key: The field that the answer must have.
        asked: The id that is asked for, None where there is none that could be unknown.
        query: The query parameters, not encoded yet.

    """

    path: str
    key: str
    asked: str | None = None
    query: tuple[tuple[str, str], ...] = ()

    @property
    def target(self) -> str:
        """The path with the query: every reserved character is encoded, ``+``, ``/`` and ``=`` of base64 too."""
        if not self.query:
            return self.path
        return self.path + "?" + "&".join(f"{name}={quote(value, safe='')}" for name, value in self.query)


@attrs.frozen
class Route(Generic[A_co]):
    """
    How to ask for one entity.

    Args:
        name: The route's name.
        envelope: The field of the answer that holds the record.
        answer: The model of the answer.
        flat: Whether the answer is the record itself.

    """

    name: str
    envelope: str
    answer: type[A_co]
    flat: bool = attrs.field(default=False, kw_only=True)

    def request(self, *segments: str, asked: str) -> Request:
        """Return the request for the entity that *segments* name."""
        return Request(path="/".join((f"/structs/{self.name}", *segments)), key=self.envelope, asked=asked)

    def check(self, payload: Mapping[str, Any], **expected: str) -> None:
        """Raise `MalformedResponse` where the answer is not about the entity with the *expected* fields."""
        record, path = (payload, "$") if self.flat else (payload[self.envelope], f"$.{self.envelope}")
        if not isinstance(record, dict):
            raise MalformedResponse("must be an object", path=path)
        for name, value in expected.items():
            if record.get(name) != value:
                raise MalformedResponse(f"must be {value!r}, which was asked for", path=f"{path}.{name}")


@attrs.frozen
class Listing(Generic[R_co]):
    """How to ask for a list of records: the route, and the model of its pages."""

    name: str
    key: str
    page: type[pages.Page[R_co]]

    def request(self, *segments: str, query: tuple[tuple[str, str], ...]) -> Request:
        """Return the request for one page."""
        return Request(path="/".join((f"/structs/{self.name}", *segments)), key=self.key, query=query)

    def next_key(self, payload: Mapping[str, Any], *, after: str | None) -> str | None:
        """
        Check how a page ends, its records apart, and return where the next one begins, None after the last.

        Args:
            payload: The answer, which has the list's key.
            after: Where this page began, None where the next one may begin anywhere.

        Raises:
            MalformedResponse: The answer is no page, or leads nowhere: lists are in ascending byte order of their keys.

        """
        if not isinstance(payload[self.key], list):
            raise MalformedResponse("must be an array", path=f"$.{self.key}")
        pagination = structure({"pagination": payload.get("pagination")}, _End).pagination
        key = pagination.next_key if pagination else None
        if not key:
            return None
        place = place_of(key)
        if place is None or (after is not None and place <= (place_of(after) or b"")):
            raise MalformedResponse("must be a later place in base64", path="$.pagination.next_key")
        return key


@attrs.frozen(kw_only=True, repr=False)
class _End(Record):
    """What every page has beside its records."""

    pagination: pages.Pagination | None = None


GUILD = Route("guild", "Guild", answers.GuildAnswer)
PLAYER = Route("player", "Player", answers.PlayerAnswer)
PLANET = Route("planet", "Planet", answers.PlanetAnswer)
REACTOR = Route("reactor", "Reactor", answers.ReactorAnswer)
SUBSTATION = Route("substation", "Substation", answers.SubstationAnswer)
STRUCT = Route("struct", "Struct", answers.StructAnswer)
ALLOCATION = Route("allocation", "Allocation", answers.AllocationAnswer)
FLEET = Route("fleet", "Fleet", answers.FleetAnswer)
PROVIDER = Route("provider", "Provider", answers.ProviderAnswer)
AGREEMENT = Route("agreement", "Agreement", answers.AgreementAnswer)
INFUSION = Route("infusion", "Infusion", answers.InfusionAnswer)
ADDRESS = Route("address", "address", answers.AddressAnswer, flat=True)
STRUCT_TYPE = Route("struct_type", "StructType", answers.StructTypeAnswer)
GRID = Route("grid", "gridRecord", answers.GridRecordAnswer)
STRUCT_ATTRIBUTE = Route("struct_attribute", "attribute", answers.AttributeAnswer, flat=True)
PLANET_ATTRIBUTE = Route("planet_attribute", "attribute", answers.AttributeAnswer, flat=True)

BLOCK_HEIGHT = Request(path="/blockheight", key="blockHeight")

ROUTES: Mapping[EntityType, Route[Any]] = {
    EntityType.GUILD: GUILD,
    EntityType.PLAYER: PLAYER,
    EntityType.PLANET: PLANET,
    EntityType.REACTOR: REACTOR,
    EntityType.SUBSTATION: SUBSTATION,
    EntityType.STRUCT: STRUCT,
    EntityType.ALLOCATION: ALLOCATION,
    EntityType.FLEET: FLEET,
    EntityType.PROVIDER: PROVIDER,
    EntityType.AGREEMENT: AGREEMENT,
}
"""The routes of everything that has a ``type-index`` id."""

GUILDS = Listing[entities.Guild]("guild", "Guild", pages.GuildPage)
PLAYERS = Listing[entities.Player]("player", "Player", pages.PlayerPage)
PLANETS = Listing[entities.Planet]("planet", "Planet", pages.PlanetPage)
REACTORS = Listing[entities.Reactor]("reactor", "Reactor", pages.ReactorPage)
SUBSTATIONS = Listing[entities.Substation]("substation", "Substation", pages.SubstationPage)
STRUCTS = Listing[entities.Struct]("struct", "Struct", pages.StructPage)
ALLOCATIONS = Listing[entities.Allocation]("allocation", "Allocation", pages.AllocationPage)
INFUSIONS = Listing[entities.Infusion]("infusion", "Infusion", pages.InfusionPage)
ADDRESSES = Listing[entities.Address]("address", "address", pages.AddressPage)
FLEETS = Listing[entities.Fleet]("fleet", "Fleet", pages.FleetPage)
PROVIDERS = Listing[entities.Provider]("provider", "Provider", pages.ProviderPage)
AGREEMENTS = Listing[entities.Agreement]("agreement", "Agreement", pages.AgreementPage)
STRUCT_TYPES = Listing[struct_types.StructType]("struct_type", "StructType", pages.StructTypePage)

LISTINGS: Mapping[str, Listing[Any]] = {
    listing.name: listing
    for listing in (
        GUILDS,
        PLAYERS,
        PLANETS,
        REACTORS,
        SUBSTATIONS,
        STRUCTS,
        ALLOCATIONS,
        INFUSIONS,
        ADDRESSES,
        FLEETS,
        PROVIDERS,
        AGREEMENTS,
        STRUCT_TYPES,
    )
}
"""The whole lists, by the name of the type."""

PLANETS_BY_PLAYER = Listing[entities.Planet]("planet_by_player", "Planet", pages.PlanetPage)
ADDRESSES_BY_PLAYER = Listing[entities.Address]("address_by_player", "address", pages.AddressPage)
PERMISSIONS_BY_OBJECT = Listing[attributes.PermissionRecord](
    "permission/object", "permissionRecords", pages.PermissionPage
)
PERMISSIONS_BY_PLAYER = Listing[attributes.PermissionRecord](
    "permission/player", "permissionRecords", pages.PermissionPage
)
AGREEMENTS_BY_PROVIDER = Listing[entities.Agreement]("agreement_by_provider", "Agreement", pages.AgreementPage)
ALLOCATIONS_BY_SOURCE = Listing[entities.Allocation]("allocation_by_source", "Allocation", pages.AllocationPage)
ALLOCATIONS_BY_DESTINATION = Listing[entities.Allocation](
    "allocation_by_destination", "Allocation", pages.AllocationPage
)
INFUSIONS_BY_DESTINATION = Listing[entities.Infusion]("infusion_by_destination", "Infusion", pages.InfusionPage)
