"""
Hypothesis strategies (extra ``testing``).

For Structs data: ids, texts that look like ids, payloads with known ids, worlds, delays.
For refs: documents with known refs, messages that contain them, and splits of a text into chunks.
For agents: memories and arguments of tools.
"""

from __future__ import annotations

from mama_structs.testing.strategies.arguments import tool_arguments
from mama_structs.testing.strategies.documents import (
    PlantedMessage,
    PlantedRef,
    RefDocument,
    chunkings,
    messages,
    ref_documents,
    ref_ids,
)
from mama_structs.testing.strategies.entities import (
    Delays,
    delays,
    entity_id_texts,
    entity_ids,
    entity_types,
    latencies,
    look_alikes,
    worlds,
)
from mama_structs.testing.strategies.memories import PlantedChain, chains, decisions, memories
from mama_structs.testing.strategies.payloads import PlantedPayload, PlantedReference, list_payloads, payloads

__all__ = [
    "Delays",
    "PlantedChain",
    "PlantedMessage",
    "PlantedPayload",
    "PlantedRef",
    "PlantedReference",
    "RefDocument",
    "chains",
    "chunkings",
    "decisions",
    "delays",
    "entity_id_texts",
    "entity_ids",
    "entity_types",
    "latencies",
    "list_payloads",
    "look_alikes",
    "memories",
    "messages",
    "payloads",
    "ref_documents",
    "ref_ids",
    "tool_arguments",
    "worlds",
]
