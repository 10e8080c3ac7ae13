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
    from mama_structs.descriptors.parser import RefParser as RefParser
    from mama_structs.descriptors.store import Ingested as Ingested
    from mama_structs.descriptors.store import RefStore as RefStore
    from mama_structs.errors import MamaStructsError as MamaStructsError
    from mama_structs.memory.embedding.callables import as_embedder as as_embedder
    from mama_structs.memory.embedding.hashed import HashEmbedder as HashEmbedder
    from mama_structs.memory.embedding.protocol import Calibration as Calibration
    from mama_structs.memory.embedding.protocol import Embedder as Embedder
    from mama_structs.memory.embedding.universal import UniversalSentenceEmbedder as UniversalSentenceEmbedder
    from mama_structs.memory.model import Link as Link
    from mama_structs.memory.model import LinkType as LinkType
    from mama_structs.memory.model import Memory as Memory
    from mama_structs.memory.model import MemoryType as MemoryType
    from mama_structs.memory.model import Outcome as Outcome
    from mama_structs.memory.results import Chain as Chain
    from mama_structs.memory.results import Evidence as Evidence
    from mama_structs.memory.results import Hit as Hit
    from mama_structs.memory.results import Reached as Reached
    from mama_structs.memory.results import Similar as Similar
    from mama_structs.memory.results import Surroundings as Surroundings
    from mama_structs.memory.store import MemoryStore as MemoryStore
    from mama_structs.references.decorator import with_references as with_references
    from mama_structs.references.detection import Found as Found
    from mama_structs.references.options import ReferenceOptions as ReferenceOptions
    from mama_structs.references.outcomes import ResolverStats as ResolverStats
    from mama_structs.references.resolver import Resolver as Resolver
    from mama_structs.references.schemes import IdScheme as IdScheme
    from mama_structs.references.schemes import Source as Source
    from mama_structs.references.section import References as References
    from mama_structs.session import Session as Session
    from mama_structs.settings import DescriptorSettings as DescriptorSettings
    from mama_structs.settings import LinkingPolicy as LinkingPolicy
    from mama_structs.settings import MemorySettings as MemorySettings
    from mama_structs.settings import ReferenceSettings as ReferenceSettings
    from mama_structs.settings import Settings as Settings
    from mama_structs.settings import ToolSettings as ToolSettings
    from mama_structs.storage.opening import Finding as Finding
    from mama_structs.structs.client import StructsClient as StructsClient
    from mama_structs.structs.ids import EntityId as EntityId
    from mama_structs.structs.ids import EntityType as EntityType
    from mama_structs.structs.source import StructsSource as StructsSource
    from mama_structs.tools.exposure import Context as Context
    from mama_structs.tools.exposure import ContextRule as ContextRule
    from mama_structs.tools.exposure import Cue as Cue
    from mama_structs.tools.exposure import Exposure as Exposure
    from mama_structs.tools.tool import Tool as Tool
    from mama_structs.tools.tool import ToolAnnotations as ToolAnnotations
    from mama_structs.tools.tool import ToolSet as ToolSet

_SOURCES = {
    "Calibration": "mama_structs.memory.embedding.protocol",
    "Chain": "mama_structs.memory.results",
    "CheckReport": "mama_structs.composition",
    "Context": "mama_structs.tools.exposure",
    "ContextRule": "mama_structs.tools.exposure",
    "Cue": "mama_structs.tools.exposure",
    "Descriptor": "mama_structs.descriptors.entries",
    "DescriptorSettings": "mama_structs.settings",
    "Embedder": "mama_structs.memory.embedding.protocol",
    "EntityId": "mama_structs.structs.ids",
    "EntityType": "mama_structs.structs.ids",
    "Evidence": "mama_structs.memory.results",
    "Exposure": "mama_structs.tools.exposure",
    "Finding": "mama_structs.storage.opening",
    "Found": "mama_structs.references.detection",
    "HashEmbedder": "mama_structs.memory.embedding.hashed",
    "Hit": "mama_structs.memory.results",
    "IdScheme": "mama_structs.references.schemes",
    "Ingested": "mama_structs.descriptors.store",
    "Link": "mama_structs.memory.model",
    "LinkType": "mama_structs.memory.model",
    "LinkingPolicy": "mama_structs.settings",
    "MamaStructsError": "mama_structs.errors",
    "Memory": "mama_structs.memory.model",
    "MemorySettings": "mama_structs.settings",
    "MemoryStore": "mama_structs.memory.store",
    "MemoryType": "mama_structs.memory.model",
    "Outcome": "mama_structs.memory.model",
    "Reached": "mama_structs.memory.results",
    "Ref": "mama_structs.descriptors.entries",
    "RefParser": "mama_structs.descriptors.parser",
    "RefStore": "mama_structs.descriptors.store",
    "ReferenceOptions": "mama_structs.references.options",
    "ReferenceSettings": "mama_structs.settings",
    "References": "mama_structs.references.section",
    "Resolver": "mama_structs.references.resolver",
    "ResolverStats": "mama_structs.references.outcomes",
    "Session": "mama_structs.session",
    "SessionStream": "mama_structs.composition",
    "Settings": "mama_structs.settings",
    "Similar": "mama_structs.memory.results",
    "Source": "mama_structs.references.schemes",
    "StructsClient": "mama_structs.structs.client",
    "StructsSource": "mama_structs.structs.source",
    "Surroundings": "mama_structs.memory.results",
    "Tool": "mama_structs.tools.tool",
    "ToolAnnotations": "mama_structs.tools.tool",
    "ToolSet": "mama_structs.tools.tool",
    "ToolSettings": "mama_structs.settings",
    "UniversalSentenceEmbedder": "mama_structs.memory.embedding.universal",
    "as_embedder": "mama_structs.memory.embedding.callables",
    "with_descriptors": "mama_structs.descriptors.decorator",
    "with_references": "mama_structs.references.decorator",
}

__all__ = [
    "Calibration",
    "Chain",
    "CheckReport",
    "Context",
    "ContextRule",
    "Cue",
    "Descriptor",
    "DescriptorSettings",
    "Embedder",
    "EntityId",
    "EntityType",
    "Evidence",
    "Exposure",
    "Finding",
    "Found",
    "HashEmbedder",
    "Hit",
    "IdScheme",
    "Ingested",
    "Link",
    "LinkType",
    "LinkingPolicy",
    "MamaStructsError",
    "Memory",
    "MemorySettings",
    "MemoryStore",
    "MemoryType",
    "Outcome",
    "Reached",
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
    "Similar",
    "Source",
    "StructsClient",
    "StructsSource",
    "Surroundings",
    "Tool",
    "ToolAnnotations",
    "ToolSet",
    "ToolSettings",
    "UniversalSentenceEmbedder",
    "as_embedder",
    "with_descriptors",
    "with_references",
]

if not TYPE_CHECKING:  # A type checker that sees __getattr__ lets every misspelt name pass.
    __getattr__, __dir__ = attach(__name__, _SOURCES)
