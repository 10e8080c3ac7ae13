"""References, memory and refs for agents, inside the host's own process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mama_structs._internal.lazy_import import attach

if TYPE_CHECKING:
    from mama_structs.errors import MamaStructsError as MamaStructsError
    from mama_structs.memory.embedding.factory import as_embedder as as_embedder
    from mama_structs.memory.embedding.hash_embedder import HashEmbedder as HashEmbedder
    from mama_structs.memory.embedding.protocol import Embedder as Embedder
    from mama_structs.memory.embedding.sentence_encoder import UniversalSentenceEmbedder as UniversalSentenceEmbedder
    from mama_structs.memory.graph.results import Chain as Chain
    from mama_structs.memory.graph.results import Hit as Hit
    from mama_structs.memory.graph.results import Reached as Reached
    from mama_structs.memory.store.memory_store import MemoryStore as MemoryStore
    from mama_structs.memory.types.model import Link as Link
    from mama_structs.memory.types.model import LinkType as LinkType
    from mama_structs.memory.types.model import Memory as Memory
    from mama_structs.memory.types.model import Outcome as Outcome
    from mama_structs.references.decorator import with_references as with_references
    from mama_structs.references.options import ReferenceOptions as ReferenceOptions
    from mama_structs.references.resolver import Resolver as Resolver
    from mama_structs.references.schemes import IdScheme as IdScheme
    from mama_structs.references.schemes import Source as Source
    from mama_structs.references.section import References as References
    from mama_structs.refs.markup.parser import RefParser as RefParser
    from mama_structs.refs.store.decorator import with_descriptors as with_descriptors
    from mama_structs.refs.store.entries import Descriptor as Descriptor
    from mama_structs.refs.store.entries import Ref as Ref
    from mama_structs.refs.store.ref_collector import Ingested as Ingested
    from mama_structs.refs.store.ref_store import RefStore as RefStore
    from mama_structs.session.session import Session as Session
    from mama_structs.settings import DescriptorSettings as DescriptorSettings
    from mama_structs.settings import LinkingPolicy as LinkingPolicy
    from mama_structs.settings import MemorySettings as MemorySettings
    from mama_structs.settings import ReferenceSettings as ReferenceSettings
    from mama_structs.settings import Settings as Settings
    from mama_structs.settings import ToolSettings as ToolSettings
    from mama_structs.structs.client import StructsClient as StructsClient
    from mama_structs.structs.ids import EntityId as EntityId
    from mama_structs.structs.ids import EntityType as EntityType
    from mama_structs.structs.source import StructsSource as StructsSource
    from mama_structs.tools.exposure import Context as Context
    from mama_structs.tools.exposure import Exposure as Exposure
    from mama_structs.tools.tool import Tool as Tool
    from mama_structs.tools.tool import ToolSet as ToolSet

_NAMES = {
    "refs.store.decorator": "with_descriptors",
    "refs.store.entries": "Descriptor Ref",
    "refs.store.ref_collector": "Ingested",
    "refs.markup.parser": "RefParser",
    "refs.store.ref_store": "RefStore",
    "errors": "MamaStructsError",
    "memory.embedding.factory": "as_embedder",
    "memory.embedding.hash_embedder": "HashEmbedder",
    "memory.embedding.protocol": "Embedder",
    "memory.embedding.sentence_encoder": "UniversalSentenceEmbedder",
    "memory.types.model": "Link LinkType Memory Outcome",
    "memory.graph.results": "Chain Hit Reached",
    "memory.store.memory_store": "MemoryStore",
    "references.decorator": "with_references",
    "references.options": "ReferenceOptions",
    "references.resolver": "Resolver",
    "references.schemes": "IdScheme Source",
    "references.section": "References",
    "session.session": "Session",
    "settings": "DescriptorSettings LinkingPolicy MemorySettings ReferenceSettings Settings ToolSettings",
    "structs.client": "StructsClient",
    "structs.ids": "EntityId EntityType",
    "structs.source": "StructsSource",
    "tools.exposure": "Context Exposure",
    "tools.tool": "Tool ToolSet",
}
if not TYPE_CHECKING:  # A type checker that sees __getattr__ would accept every misspelt name.
    __all__, __getattr__, __dir__ = attach(__name__, _NAMES)
