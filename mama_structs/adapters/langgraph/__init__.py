"""Adapter for LangGraph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mama_structs._internal.lazy_import import attach

if TYPE_CHECKING:
    from mama_structs.adapters.langgraph.checkpoints import LangGraphCheckpointer as LangGraphCheckpointer
    from mama_structs.adapters.langgraph.store import LangGraphStore as LangGraphStore

_NAMES = {"checkpoints": "LangGraphCheckpointer", "store": "LangGraphStore"}

if not TYPE_CHECKING:  # A type checker that sees __getattr__ accepts every misspelt name.
    __all__, __getattr__, __dir__ = attach(__name__, _NAMES)
