"""Structs chain: ids, models, client, reference source and predefined tools."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mama_structs._internal.lazy_import import attach

if TYPE_CHECKING:
    from mama_structs.structs.answers import Answer as Answer
    from mama_structs.structs.answers import GridAnswer as GridAnswer
    from mama_structs.structs.answers import Page as Page
    from mama_structs.structs.answers import PlanetAnswer as PlanetAnswer
    from mama_structs.structs.answers import PlayerAnswer as PlayerAnswer
    from mama_structs.structs.answers import StructAnswer as StructAnswer
    from mama_structs.structs.chain_json import Record as Record
    from mama_structs.structs.chain_json import structure as structure
    from mama_structs.structs.chain_json import unstructure as unstructure
    from mama_structs.structs.client import StructsClient as StructsClient
    from mama_structs.structs.entities import Address as Address
    from mama_structs.structs.entities import Agreement as Agreement
    from mama_structs.structs.entities import Allocation as Allocation
    from mama_structs.structs.entities import Fleet as Fleet
    from mama_structs.structs.entities import Guild as Guild
    from mama_structs.structs.entities import GuildMembershipApplication as GuildMembershipApplication
    from mama_structs.structs.entities import Infusion as Infusion
    from mama_structs.structs.entities import Planet as Planet
    from mama_structs.structs.entities import Player as Player
    from mama_structs.structs.entities import Provider as Provider
    from mama_structs.structs.entities import Reactor as Reactor
    from mama_structs.structs.entities import Struct as Struct
    from mama_structs.structs.entities import StructType as StructType
    from mama_structs.structs.entities import Substation as Substation
    from mama_structs.structs.enums import AllocationType as AllocationType
    from mama_structs.structs.enums import Ambit as Ambit
    from mama_structs.structs.enums import FleetStatus as FleetStatus
    from mama_structs.structs.enums import GuildJoinBypassLevel as GuildJoinBypassLevel
    from mama_structs.structs.enums import GuildJoinType as GuildJoinType
    from mama_structs.structs.enums import PlanetAttribute as PlanetAttribute
    from mama_structs.structs.enums import PlanetStatus as PlanetStatus
    from mama_structs.structs.enums import ProviderAccessPolicy as ProviderAccessPolicy
    from mama_structs.structs.enums import RegistrationStatus as RegistrationStatus
    from mama_structs.structs.enums import StructAttribute as StructAttribute
    from mama_structs.structs.ids import EntityId as EntityId
    from mama_structs.structs.ids import EntityType as EntityType
    from mama_structs.structs.scheme import STRUCTS_SCHEME as STRUCTS_SCHEME
    from mama_structs.structs.source import StructsSource as StructsSource
    from mama_structs.structs.source import tools as tools

_NAMES = {
    "answers": "Answer GridAnswer Page PlanetAnswer PlayerAnswer StructAnswer",
    "client": "StructsClient",
    "chain_json": "Record structure unstructure",
    "entities": "Address Agreement Allocation Fleet Guild GuildMembershipApplication Infusion Planet Player Provider "
    "Reactor Struct StructType Substation",
    "enums": "AllocationType Ambit FleetStatus GuildJoinBypassLevel GuildJoinType PlanetAttribute PlanetStatus "
    "ProviderAccessPolicy RegistrationStatus StructAttribute",
    "ids": "EntityId EntityType",
    "scheme": "STRUCTS_SCHEME",
    "source": "StructsSource tools",
}

if not TYPE_CHECKING:  # With __getattr__ in sight, type checkers would accept misspelt names.
    __all__, __getattr__, __dir__ = attach(__name__, _NAMES)
