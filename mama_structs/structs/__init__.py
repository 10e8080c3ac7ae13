"""The Structs chain: ids, models, client, source of references and ready-made tools."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mama_structs._lazy import attach

if TYPE_CHECKING:
    from mama_structs.structs.answers import AddressAnswer as AddressAnswer
    from mama_structs.structs.answers import AgreementAnswer as AgreementAnswer
    from mama_structs.structs.answers import AllocationAnswer as AllocationAnswer
    from mama_structs.structs.answers import Answer as Answer
    from mama_structs.structs.answers import AttributeAnswer as AttributeAnswer
    from mama_structs.structs.answers import BlockHeightAnswer as BlockHeightAnswer
    from mama_structs.structs.answers import Envelope as Envelope
    from mama_structs.structs.answers import ErrorBody as ErrorBody
    from mama_structs.structs.answers import FleetAnswer as FleetAnswer
    from mama_structs.structs.answers import GridAnswer as GridAnswer
    from mama_structs.structs.answers import GridRecordAnswer as GridRecordAnswer
    from mama_structs.structs.answers import GuildAnswer as GuildAnswer
    from mama_structs.structs.answers import GuildMembershipApplicationAnswer as GuildMembershipApplicationAnswer
    from mama_structs.structs.answers import InfusionAnswer as InfusionAnswer
    from mama_structs.structs.answers import PlanetAnswer as PlanetAnswer
    from mama_structs.structs.answers import PlayerAnswer as PlayerAnswer
    from mama_structs.structs.answers import ProviderAnswer as ProviderAnswer
    from mama_structs.structs.answers import ReactorAnswer as ReactorAnswer
    from mama_structs.structs.answers import StructAnswer as StructAnswer
    from mama_structs.structs.answers import StructTypeAnswer as StructTypeAnswer
    from mama_structs.structs.answers import SubstationAnswer as SubstationAnswer
    from mama_structs.structs.attributes import AttributeRecord as AttributeRecord
    from mama_structs.structs.attributes import Coin as Coin
    from mama_structs.structs.attributes import GridAttributes as GridAttributes
    from mama_structs.structs.attributes import GridRecord as GridRecord
    from mama_structs.structs.attributes import GuildRankPermissionRecord as GuildRankPermissionRecord
    from mama_structs.structs.attributes import InternalAddressAssociation as InternalAddressAssociation
    from mama_structs.structs.attributes import PermissionRecord as PermissionRecord
    from mama_structs.structs.attributes import PlanetAttributes as PlanetAttributes
    from mama_structs.structs.attributes import PlayerInventory as PlayerInventory
    from mama_structs.structs.attributes import StructAttributes as StructAttributes
    from mama_structs.structs.client import StructsClient as StructsClient
    from mama_structs.structs.convert import structure as structure
    from mama_structs.structs.convert import unstructure as unstructure
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
    from mama_structs.structs.entities import Substation as Substation
    from mama_structs.structs.enums import ActiveWeaponry as ActiveWeaponry
    from mama_structs.structs.enums import AllocationType as AllocationType
    from mama_structs.structs.enums import Ambit as Ambit
    from mama_structs.structs.enums import FleetStatus as FleetStatus
    from mama_structs.structs.enums import GridAttribute as GridAttribute
    from mama_structs.structs.enums import GuildJoinBypassLevel as GuildJoinBypassLevel
    from mama_structs.structs.enums import GuildJoinType as GuildJoinType
    from mama_structs.structs.enums import OreReserveDefenses as OreReserveDefenses
    from mama_structs.structs.enums import PassiveWeaponry as PassiveWeaponry
    from mama_structs.structs.enums import PlanetaryDefenses as PlanetaryDefenses
    from mama_structs.structs.enums import PlanetaryMining as PlanetaryMining
    from mama_structs.structs.enums import PlanetaryRefineries as PlanetaryRefineries
    from mama_structs.structs.enums import PlanetAttribute as PlanetAttribute
    from mama_structs.structs.enums import PlanetStatus as PlanetStatus
    from mama_structs.structs.enums import PowerGeneration as PowerGeneration
    from mama_structs.structs.enums import ProviderAccessPolicy as ProviderAccessPolicy
    from mama_structs.structs.enums import RegistrationStatus as RegistrationStatus
    from mama_structs.structs.enums import StructAttribute as StructAttribute
    from mama_structs.structs.enums import UnitDefenses as UnitDefenses
    from mama_structs.structs.enums import WeaponControl as WeaponControl
    from mama_structs.structs.ids import EntityId as EntityId
    from mama_structs.structs.ids import EntityType as EntityType
    from mama_structs.structs.pages import AddressPage as AddressPage
    from mama_structs.structs.pages import AgreementPage as AgreementPage
    from mama_structs.structs.pages import AllocationPage as AllocationPage
    from mama_structs.structs.pages import FleetPage as FleetPage
    from mama_structs.structs.pages import GridPage as GridPage
    from mama_structs.structs.pages import GuildMembershipApplicationPage as GuildMembershipApplicationPage
    from mama_structs.structs.pages import GuildPage as GuildPage
    from mama_structs.structs.pages import GuildRankPermissionPage as GuildRankPermissionPage
    from mama_structs.structs.pages import InfusionPage as InfusionPage
    from mama_structs.structs.pages import InternalAddressPage as InternalAddressPage
    from mama_structs.structs.pages import Page as Page
    from mama_structs.structs.pages import Pagination as Pagination
    from mama_structs.structs.pages import PermissionPage as PermissionPage
    from mama_structs.structs.pages import PlanetAttributePage as PlanetAttributePage
    from mama_structs.structs.pages import PlanetPage as PlanetPage
    from mama_structs.structs.pages import PlayerPage as PlayerPage
    from mama_structs.structs.pages import ProviderPage as ProviderPage
    from mama_structs.structs.pages import ReactorPage as ReactorPage
    from mama_structs.structs.pages import StructAttributePage as StructAttributePage
    from mama_structs.structs.pages import StructPage as StructPage
    from mama_structs.structs.pages import StructTypePage as StructTypePage
    from mama_structs.structs.pages import SubstationPage as SubstationPage
    from mama_structs.structs.record import Record as Record
    from mama_structs.structs.scheme import STRUCTS_SCHEME as STRUCTS_SCHEME
    from mama_structs.structs.source import StructsSource as StructsSource
    from mama_structs.structs.struct_types import StructType as StructType
    from mama_structs.structs.toolbox import tools as tools

_SOURCES = {
    "ActiveWeaponry": "mama_structs.structs.enums",
    "Address": "mama_structs.structs.entities",
    "AddressAnswer": "mama_structs.structs.answers",
    "AddressPage": "mama_structs.structs.pages",
    "Agreement": "mama_structs.structs.entities",
    "AgreementAnswer": "mama_structs.structs.answers",
    "AgreementPage": "mama_structs.structs.pages",
    "Allocation": "mama_structs.structs.entities",
    "AllocationAnswer": "mama_structs.structs.answers",
    "AllocationPage": "mama_structs.structs.pages",
    "AllocationType": "mama_structs.structs.enums",
    "Ambit": "mama_structs.structs.enums",
    "Answer": "mama_structs.structs.answers",
    "AttributeAnswer": "mama_structs.structs.answers",
    "AttributeRecord": "mama_structs.structs.attributes",
    "BlockHeightAnswer": "mama_structs.structs.answers",
    "Coin": "mama_structs.structs.attributes",
    "EntityId": "mama_structs.structs.ids",
    "EntityType": "mama_structs.structs.ids",
    "Envelope": "mama_structs.structs.answers",
    "ErrorBody": "mama_structs.structs.answers",
    "Fleet": "mama_structs.structs.entities",
    "FleetAnswer": "mama_structs.structs.answers",
    "FleetPage": "mama_structs.structs.pages",
    "FleetStatus": "mama_structs.structs.enums",
    "GridAnswer": "mama_structs.structs.answers",
    "GridAttribute": "mama_structs.structs.enums",
    "GridAttributes": "mama_structs.structs.attributes",
    "GridPage": "mama_structs.structs.pages",
    "GridRecord": "mama_structs.structs.attributes",
    "GridRecordAnswer": "mama_structs.structs.answers",
    "Guild": "mama_structs.structs.entities",
    "GuildAnswer": "mama_structs.structs.answers",
    "GuildJoinBypassLevel": "mama_structs.structs.enums",
    "GuildJoinType": "mama_structs.structs.enums",
    "GuildMembershipApplication": "mama_structs.structs.entities",
    "GuildMembershipApplicationAnswer": "mama_structs.structs.answers",
    "GuildMembershipApplicationPage": "mama_structs.structs.pages",
    "GuildPage": "mama_structs.structs.pages",
    "GuildRankPermissionPage": "mama_structs.structs.pages",
    "GuildRankPermissionRecord": "mama_structs.structs.attributes",
    "Infusion": "mama_structs.structs.entities",
    "InfusionAnswer": "mama_structs.structs.answers",
    "InfusionPage": "mama_structs.structs.pages",
    "InternalAddressAssociation": "mama_structs.structs.attributes",
    "InternalAddressPage": "mama_structs.structs.pages",
    "OreReserveDefenses": "mama_structs.structs.enums",
    "Page": "mama_structs.structs.pages",
    "Pagination": "mama_structs.structs.pages",
    "PassiveWeaponry": "mama_structs.structs.enums",
    "PermissionPage": "mama_structs.structs.pages",
    "PermissionRecord": "mama_structs.structs.attributes",
    "Planet": "mama_structs.structs.entities",
    "PlanetAnswer": "mama_structs.structs.answers",
    "PlanetAttribute": "mama_structs.structs.enums",
    "PlanetAttributePage": "mama_structs.structs.pages",
    "PlanetAttributes": "mama_structs.structs.attributes",
    "PlanetPage": "mama_structs.structs.pages",
    "PlanetStatus": "mama_structs.structs.enums",
    "PlanetaryDefenses": "mama_structs.structs.enums",
    "PlanetaryMining": "mama_structs.structs.enums",
    "PlanetaryRefineries": "mama_structs.structs.enums",
    "Player": "mama_structs.structs.entities",
    "PlayerAnswer": "mama_structs.structs.answers",
    "PlayerInventory": "mama_structs.structs.attributes",
    "PlayerPage": "mama_structs.structs.pages",
    "PowerGeneration": "mama_structs.structs.enums",
    "Provider": "mama_structs.structs.entities",
    "ProviderAccessPolicy": "mama_structs.structs.enums",
    "ProviderAnswer": "mama_structs.structs.answers",
    "ProviderPage": "mama_structs.structs.pages",
    "Reactor": "mama_structs.structs.entities",
    "ReactorAnswer": "mama_structs.structs.answers",
    "ReactorPage": "mama_structs.structs.pages",
    "Record": "mama_structs.structs.record",
    "RegistrationStatus": "mama_structs.structs.enums",
    "STRUCTS_SCHEME": "mama_structs.structs.scheme",
    "Struct": "mama_structs.structs.entities",
    "StructAnswer": "mama_structs.structs.answers",
    "StructAttribute": "mama_structs.structs.enums",
    "StructAttributePage": "mama_structs.structs.pages",
    "StructAttributes": "mama_structs.structs.attributes",
    "StructPage": "mama_structs.structs.pages",
    "StructType": "mama_structs.structs.struct_types",
    "StructTypeAnswer": "mama_structs.structs.answers",
    "StructTypePage": "mama_structs.structs.pages",
    "StructsClient": "mama_structs.structs.client",
    "StructsSource": "mama_structs.structs.source",
    "Substation": "mama_structs.structs.entities",
    "SubstationAnswer": "mama_structs.structs.answers",
    "SubstationPage": "mama_structs.structs.pages",
    "UnitDefenses": "mama_structs.structs.enums",
    "WeaponControl": "mama_structs.structs.enums",
    "structure": "mama_structs.structs.convert",
    "tools": "mama_structs.structs.toolbox",
    "unstructure": "mama_structs.structs.convert",
}

__all__ = [
    "STRUCTS_SCHEME",
    "ActiveWeaponry",
    "Address",
    "AddressAnswer",
    "AddressPage",
    "Agreement",
    "AgreementAnswer",
    "AgreementPage",
    "Allocation",
    "AllocationAnswer",
    "AllocationPage",
    "AllocationType",
    "Ambit",
    "Answer",
    "AttributeAnswer",
    "AttributeRecord",
    "BlockHeightAnswer",
    "Coin",
    "EntityId",
    "EntityType",
    "Envelope",
    "ErrorBody",
    "Fleet",
    "FleetAnswer",
    "FleetPage",
    "FleetStatus",
    "GridAnswer",
    "GridAttribute",
    "GridAttributes",
    "GridPage",
    "GridRecord",
    "GridRecordAnswer",
    "Guild",
    "GuildAnswer",
    "GuildJoinBypassLevel",
    "GuildJoinType",
    "GuildMembershipApplication",
    "GuildMembershipApplicationAnswer",
    "GuildMembershipApplicationPage",
    "GuildPage",
    "GuildRankPermissionPage",
    "GuildRankPermissionRecord",
    "Infusion",
    "InfusionAnswer",
    "InfusionPage",
    "InternalAddressAssociation",
    "InternalAddressPage",
    "OreReserveDefenses",
    "Page",
    "Pagination",
    "PassiveWeaponry",
    "PermissionPage",
    "PermissionRecord",
    "Planet",
    "PlanetAnswer",
    "PlanetAttribute",
    "PlanetAttributePage",
    "PlanetAttributes",
    "PlanetPage",
    "PlanetStatus",
    "PlanetaryDefenses",
    "PlanetaryMining",
    "PlanetaryRefineries",
    "Player",
    "PlayerAnswer",
    "PlayerInventory",
    "PlayerPage",
    "PowerGeneration",
    "Provider",
    "ProviderAccessPolicy",
    "ProviderAnswer",
    "ProviderPage",
    "Reactor",
    "ReactorAnswer",
    "ReactorPage",
    "Record",
    "RegistrationStatus",
    "Struct",
    "StructAnswer",
    "StructAttribute",
    "StructAttributePage",
    "StructAttributes",
    "StructPage",
    "StructType",
    "StructTypeAnswer",
    "StructTypePage",
    "StructsClient",
    "StructsSource",
    "Substation",
    "SubstationAnswer",
    "SubstationPage",
    "UnitDefenses",
    "WeaponControl",
    "structure",
    "tools",
    "unstructure",
]

if not TYPE_CHECKING:  # A type checker that sees __getattr__ lets every misspelt name pass.
    __getattr__, __dir__ = attach(__name__, _SOURCES)
