"""
A session in Pydantic AI's harness: its memory, its large results, its conversations, and a capability that recalls.

It needs the extra ``pydantic-ai-harness``. A session's tools are in `mama_structs.adapters.pydantic_ai`.
"""

from __future__ import annotations

from typing import Any

from mama_structs.adapters.shared.tool_results import MAX_CHARS
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

__all__ = ["SessionConversationStore", "conversation_store", "memory_store", "overflow_store", "recall"]


def memory_store(session: Session, *, origin: Origin = "model") -> MetadataMemoryStore:
    """
    Return a session as the store of the harness's memory, for ``Memory(store=...)``.

    Files are compared and set: who writes over another version than it read gets the harness's
    ``MemoryConflictError``; an operation that is repeated within 30 days is done once. ``search_memory`` finds files by
    words and by meaning, and what a file holds is also found by `Session.recall` and by the searches of
    ``session.memories``. All sessions of one namespace share the files.

    Args:
        session: Where the files are kept; it must be open while they are used, on the event loop that opened it.
        origin: Who the files come from, as for `MemoryStore.save_decision`: what is recalled of them says so.

    """
    return SessionMemoryStore(session, origin)


def overflow_store(session: Session) -> OverflowStore:
    """
    Return a session as the store of large results, for ``ToolOutputLimits(store=...)``.

    The handle of a result is a descriptor of the session (``fd:1``), which the session's tools read, search and pass
    on, too. It belongs to the session's conversation, and is on disk when the model reads of it. Where the session's
    quota is full, the harness falls back to its next action.

    Args:
        session: Where the results are kept; it must be open while they are used, on the event loop that opened it.

    """
    return SessionOverflowStore(session)


def conversation_store(session: Session) -> SessionConversationStore:
    """
    Return a session as the store of conversations, with the methods of the harness's ``SqliteConversationStore``.

    A conversation is kept beside the memories: no search and no recall finds what is said in it.

    Args:
        session: Where they are kept; it must be open while they are used, on the event loop that opened it.

    """
    return SessionConversationStore(session)


def recall(
    session: Session,
    *,
    id: str | None = None,  # noqa: A002 - the framework's word
    max_chars: int = MAX_CHARS,
) -> AbstractCapability[Any]:
    """
    Return what tells an agent what is remembered, without any tool, for ``Agent(capabilities=[...])``.

    What the session recalls for the user's message stands behind it, as a message of its own, which stays in the
    history. Where nothing of it is in a run's messages, as in another conversation or after a compaction, it is told
    again. The refs of each answer are stored before its calls run. `mama_structs.adapters.pydantic_ai.capability` has
    the session's tools as well: take one of the two.

    Args:
        session: Whose memories and refs; it must be open while they are used, on the event loop that opened it.
        id: The capability's name among those of an agent.
        max_chars: Characters of what is recalled at the most, 300 or more.

    """
    return SessionRecall(session, id=id, max_chars=max_chars)
