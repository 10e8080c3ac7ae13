"""Adapter for Google's Agent Development Kit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mama_structs._internal.lazy_import import attach

if TYPE_CHECKING:
    from mama_structs.adapters.google_adk.artifacts import AdkArtifactService as AdkArtifactService
    from mama_structs.adapters.google_adk.memory import AdkMemoryService as AdkMemoryService

_NAMES = {"artifacts": "AdkArtifactService", "memory": "AdkMemoryService"}

if not TYPE_CHECKING:  # A type checker that sees __getattr__ accepts every misspelt name.
    __all__, __getattr__, __dir__ = attach(__name__, _NAMES)
