"""References, memory and refs for agents, inside the host's own process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mama_structs._lazy import attach

if TYPE_CHECKING:
    from mama_structs.composition import CheckReport as CheckReport
    from mama_structs.composition import SessionStream as SessionStream
    from mama_structs.descriptors.decorator import with_descriptors as with_descriptors
    from mama_structs.descriptors.entries import Descriptor as Descriptor
    from mama_structs.descriptors.entries import Ref as Ref
    from mama_structs.descriptors.ingesting import Ingested as Ingested
    from mama_structs.descriptors.parser import RefParser as RefParser
    from mama_structs.descriptors.store import RefStore as RefStore
    from mama_structs.errors import MamaStructsError as MamaStructsError
    from mama_structs.references.decorator import with_references as with_references
    from mama_structs.references.detection import Found as Found
    from mama_structs.references.options import ReferenceOptions as ReferenceOptions
    from mama_structs.references.resolver import Resolver as Resolver
    from mama_structs.references.schemes import IdScheme as IdScheme
    from mama_structs.references.schemes import Source as Source
    from mama_structs.references.section import References as References
    from mama_structs.references.stats import ResolverStats as ResolverStats
    from mama_structs.session import Session as Session
    from mama_structs.settings import DescriptorSettings as DescriptorSettings
    from mama_structs.settings import ReferenceSettings as ReferenceSettings
    from mama_structs.settings import Settings as Settings
    from mama_structs.storage.inspection import Finding as Finding
    from mama_structs.structs.client import StructsClient as StructsClient
    from mama_structs.structs.ids import EntityId as EntityId
    from mama_structs.structs.ids import EntityType as EntityType
    from mama_structs.structs.source import StructsSource as StructsSource
    from mama_structs.tools.tool import Tool as Tool
    from mama_structs.tools.tool import ToolAnnotations as ToolAnnotations
    from mama_structs.tools.toolset import ToolSet as ToolSet

_SOURCES = {
    "CheckReport": "mama_structs.composition",
    "Descriptor": "mama_structs.descriptors.entries",
    "DescriptorSettings": "mama_structs.settings",
    "EntityId": "mama_structs.structs.ids",
    "EntityType": "mama_structs.structs.ids",
    "Finding": "mama_structs.storage.inspection",
    "Found": "mama_structs.references.detection",
    "IdScheme": "mama_structs.references.schemes",
    "Ingested": "mama_structs.descriptors.ingesting",
    "MamaStructsError": "mama_structs.errors",
    "Ref": "mama_structs.descriptors.entries",
    "RefParser": "mama_structs.descriptors.parser",
    "RefStore": "mama_structs.descriptors.store",
    "ReferenceOptions": "mama_structs.references.options",
    "ReferenceSettings": "mama_structs.settings",
    "References": "mama_structs.references.section",
    "Resolver": "mama_structs.references.resolver",
    "ResolverStats": "mama_structs.references.stats",
    "Session": "mama_structs.session",
    "SessionStream": "mama_structs.composition",
    "Settings": "mama_structs.settings",
    "Source": "mama_structs.references.schemes",
    "StructsClient": "mama_structs.structs.client",
    "StructsSource": "mama_structs.structs.source",
    "Tool": "mama_structs.tools.tool",
    "ToolAnnotations": "mama_structs.tools.tool",
    "ToolSet": "mama_structs.tools.toolset",
    "with_descriptors": "mama_structs.descriptors.decorator",
    "with_references": "mama_structs.references.decorator",
}

__all__ = [
    "CheckReport",
    "Descriptor",
    "DescriptorSettings",
    "EntityId",
    "EntityType",
    "Finding",
    "Found",
    "IdScheme",
    "Ingested",
    "MamaStructsError",
    "Ref",
    "RefParser",
    "RefStore",
    "ReferenceOptions",
    "ReferenceSettings",
    "References",
    "Resolver",
    "ResolverStats",
    "Session",
    "SessionStream",
    "Settings",
    "Source",
    "StructsClient",
    "StructsSource",
    "Tool",
    "ToolAnnotations",
    "ToolSet",
    "with_descriptors",
    "with_references",
]

if not TYPE_CHECKING:  # A type checker that sees __getattr__ lets every misspelt name pass.
    __getattr__, __dir__ = attach(__name__, _SOURCES)
