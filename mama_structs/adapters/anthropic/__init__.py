"""Adapter for the Anthropic SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mama_structs._internal.lazy_import import attach

if TYPE_CHECKING:
    from mama_structs.adapters.anthropic.memory_backend import memory_tool as memory_tool
    from mama_structs.adapters.anthropic.messages import handle as handle
    from mama_structs.adapters.anthropic.messages import recalled as recalled
    from mama_structs.adapters.anthropic.messages import tools as tools

_NAMES = {"memory_backend": "memory_tool", "messages": "handle recalled tools"}

if not TYPE_CHECKING:  # A type checker that sees __getattr__ accepts every misspelt name.
    __all__, __getattr__, __dir__ = attach(__name__, _NAMES)
