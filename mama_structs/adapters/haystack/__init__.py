"""Adapter for Haystack."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mama_structs._internal.lazy_import import attach

if TYPE_CHECKING:
    from mama_structs.adapters.haystack.components import HaystackRetriever as HaystackRetriever
    from mama_structs.adapters.haystack.components import HaystackToolResultStore as HaystackToolResultStore
    from mama_structs.adapters.haystack.document_store import HaystackDocumentStore as HaystackDocumentStore

_NAMES = {"components": "HaystackRetriever HaystackToolResultStore", "document_store": "HaystackDocumentStore"}

if not TYPE_CHECKING:  # A type checker that sees __getattr__ accepts every misspelt name.
    __all__, __getattr__, __dir__ = attach(__name__, _NAMES)
