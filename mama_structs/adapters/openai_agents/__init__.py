"""Adapter for the OpenAI Agents SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mama_structs._internal.lazy_import import attach

if TYPE_CHECKING:
    from mama_structs.adapters.openai_agents.session import ConversationSession as ConversationSession
    from mama_structs.adapters.openai_agents.session import recalling as recalling
    from mama_structs.adapters.openai_agents.toolkit import SessionHooks as SessionHooks
    from mama_structs.adapters.openai_agents.toolkit import hooks as hooks
    from mama_structs.adapters.openai_agents.toolkit import tools as tools

_NAMES = {"session": "ConversationSession recalling", "toolkit": "SessionHooks hooks tools"}

if not TYPE_CHECKING:  # A type checker that sees __getattr__ accepts every misspelt name.
    __all__, __getattr__, __dir__ = attach(__name__, _NAMES)
