"""
Adapter for Pydantic AI's harness: memory, large results, conversations and recall.

It needs the extra ``pydantic-ai-harness``. A session's tools are in `mama_structs.adapters.pydantic_ai`.
"""

from __future__ import annotations

from typing import Any

from mama_structs import sync
from mama_structs.adapters.shared.tool_results import DEFAULT_MAX_RECALL_CHARS
from mama_structs.memory.types.model import Origin
from mama_structs.session.session import Session

try:
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai_harness.memory import MetadataMemoryStore
    from pydantic_ai_harness.tool_output_limits import OverflowStore
except ImportError as _missing:
    raise ImportError(
        "mama_structs.adapters.pydantic_ai_harness needs Pydantic AI's harness: "
        "pip install 'mama-structs[pydantic-ai-harness]'"
    ) from _missing

from mama_structs.adapters.pydantic_ai_harness.conversations import SessionConversationStore
from mama_structs.adapters.pydantic_ai_harness.memory import SessionMemoryStore
from mama_structs.adapters.pydantic_ai_harness.overflow import SessionOverflowStore
from mama_structs.adapters.pydantic_ai_harness.recall import SessionRecall

__all__ = ["SessionConversationStore", "conversation_store", "memory_store", "overflow_store", "recall_capability"]


def memory_store(session: Session | sync.Session, *, origin: Origin = "model") -> MetadataMemoryStore:
    """
    Return a session as the store of the harness's memory, for ``Memory(store=...)``.

    Writes use compare-and-set: writing over another version than the one that was read raises the harness's
    ``MemoryConflictError``. An operation that is repeated within 30 days is applied once. ``search_memory`` finds files
    by words and meaning. `Session.recall` and the searches of ``session.memories`` find the contents of files, too. All
    sessions of one namespace share the files.

    Args:
        session: The session that stores the files. It must be open while they are used. Use one of
            `mama_structs.sync` for ``agent.run_sync``.
        origin: The author of the files, as for `MemoryStore.save_decision`. Recalled text is marked with it.

    """
    return SessionMemoryStore(session, origin)


def overflow_store(session: Session | sync.Session) -> OverflowStore:
    """
    Return a session as the store of large results, for ``ToolOutputLimits(store=...)``.

    The handle of a result is a descriptor of the session (``fd:1``). The session's tools can read, search and pass it
    on, too. It belongs to the session's conversation, and is on disk before the model reads it. If the session's quota
    is exceeded, the harness falls back to its next action.

    Args:
        session: The session that stores the results; as for `memory_store`.

    """
    return SessionOverflowStore(session)


def conversation_store(session: Session | sync.Session) -> SessionConversationStore:
    """
    Return a session as the store of conversations.

    It has the methods of the harness's ``SqliteConversationStore``. Conversations are stored separately from memories:
    search and recall do not find their messages.

    Args:
        session: The session that stores them; as for `memory_store`.

    """
    return SessionConversationStore(session)


def recall_capability(
    session: Session | sync.Session,
    *,
    id: str | None = None,  # noqa: A002 - the framework's parameter name
    max_chars: int = DEFAULT_MAX_RECALL_CHARS,
) -> AbstractCapability[Any]:
    """
    Return a capability without tools that adds recalled memories to an agent's messages.

    Use it in ``Agent(capabilities=[...])``.

    The memories recalled for the user's message are appended as a separate message, which stays in the history. If a
    run's messages contain no recalled text, as in another conversation or after a compaction, facts are recalled again.
    The refs of each answer are stored before its calls run. `mama_structs.adapters.pydantic_ai.capability` has the
    session's tools as well: use one of the two.

    Args:
        session: The session with the memories and refs; as for `memory_store`.
        id: The capability's id, unique within an agent.
        max_chars: Maximum number of recalled characters, at least 300.

    """
    return SessionRecall(session, id=id, max_chars=max_chars)
