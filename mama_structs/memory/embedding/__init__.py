"""
Embedders: what turns texts into vectors, and how alike two vectors are.

Names load when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mama_structs._lazy import attach

if TYPE_CHECKING:
    from mama_structs.memory.embedding.calibrating import calibrated as calibrated
    from mama_structs.memory.embedding.callables import CallableEmbedder as CallableEmbedder
    from mama_structs.memory.embedding.callables import as_embedder as as_embedder
    from mama_structs.memory.embedding.default import default_embedder as default_embedder
    from mama_structs.memory.embedding.hashed import HashEmbedder as HashEmbedder
    from mama_structs.memory.embedding.onnx import OnnxEmbedder as OnnxEmbedder
    from mama_structs.memory.embedding.protocol import Calibration as Calibration
    from mama_structs.memory.embedding.protocol import Embedder as Embedder
    from mama_structs.memory.embedding.protocol import fingerprint_of as fingerprint_of
    from mama_structs.memory.embedding.providers import CohereEmbedder as CohereEmbedder
    from mama_structs.memory.embedding.providers import OpenAIEmbedder as OpenAIEmbedder
    from mama_structs.memory.embedding.providers import SentenceTransformerEmbedder as SentenceTransformerEmbedder
    from mama_structs.memory.embedding.providers import VoyageEmbedder as VoyageEmbedder
    from mama_structs.memory.embedding.service import EmbeddingService as EmbeddingService
    from mama_structs.memory.embedding.universal import UniversalSentenceEmbedder as UniversalSentenceEmbedder

_SOURCES = {
    "Calibration": "mama_structs.memory.embedding.protocol",
    "CallableEmbedder": "mama_structs.memory.embedding.callables",
    "CohereEmbedder": "mama_structs.memory.embedding.providers",
    "Embedder": "mama_structs.memory.embedding.protocol",
    "EmbeddingService": "mama_structs.memory.embedding.service",
    "HashEmbedder": "mama_structs.memory.embedding.hashed",
    "OnnxEmbedder": "mama_structs.memory.embedding.onnx",
    "OpenAIEmbedder": "mama_structs.memory.embedding.providers",
    "SentenceTransformerEmbedder": "mama_structs.memory.embedding.providers",
    "UniversalSentenceEmbedder": "mama_structs.memory.embedding.universal",
    "VoyageEmbedder": "mama_structs.memory.embedding.providers",
    "as_embedder": "mama_structs.memory.embedding.callables",
    "calibrated": "mama_structs.memory.embedding.calibrating",
    "default_embedder": "mama_structs.memory.embedding.default",
    "fingerprint_of": "mama_structs.memory.embedding.protocol",
}

__all__ = [
    "Calibration",
    "CallableEmbedder",
    "CohereEmbedder",
    "Embedder",
    "EmbeddingService",
    "HashEmbedder",
    "OnnxEmbedder",
    "OpenAIEmbedder",
    "SentenceTransformerEmbedder",
    "UniversalSentenceEmbedder",
    "VoyageEmbedder",
    "as_embedder",
    "calibrated",
    "default_embedder",
    "fingerprint_of",
]

if not TYPE_CHECKING:  # A type checker that sees __getattr__ lets every misspelt name pass.
    __getattr__, __dir__ = attach(__name__, _SOURCES)
