"""Adapter for LangChain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mama_structs._internal.lazy_import import attach

if TYPE_CHECKING:
    from mama_structs.adapters.langchain.stores import SessionKeyValueStore as SessionKeyValueStore
    from mama_structs.adapters.langchain.stores import SessionRetriever as SessionRetriever
    from mama_structs.adapters.langchain.stores import embedder as embedder
    from mama_structs.adapters.langchain.toolkit import middleware as middleware
    from mama_structs.adapters.langchain.toolkit import tools as tools
    from mama_structs.adapters.langchain.vector_store import SessionVectorStore as SessionVectorStore

_NAMES = {
    "stores": "SessionKeyValueStore SessionRetriever embedder",
    "toolkit": "middleware tools",
    "vector_store": "SessionVectorStore",
}

if not TYPE_CHECKING:  # A type checker that sees __getattr__ accepts every misspelt name.
    __all__, __getattr__, __dir__ = attach(__name__, _NAMES)
