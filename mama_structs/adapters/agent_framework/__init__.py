"""Adapter for the Microsoft Agent Framework."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mama_structs._internal.lazy_import import attach

if TYPE_CHECKING:
    from mama_structs.adapters.agent_framework.providers import SessionContextProvider as SessionContextProvider
    from mama_structs.adapters.agent_framework.providers import SessionHistoryProvider as SessionHistoryProvider

_NAMES = {"providers": "SessionContextProvider SessionHistoryProvider"}

if not TYPE_CHECKING:  # A type checker that sees __getattr__ accepts every misspelt name.
    __all__, __getattr__, __dir__ = attach(__name__, _NAMES)
