"""Detection of messages that a conversation of the Agent Framework already contains."""

from __future__ import annotations

from collections.abc import Sequence

try:
    from agent_framework import Message
except ImportError as _missing:
    raise ImportError(
        "the Agent Framework adapters need Microsoft's Agent Framework: pip install 'mama-structs[agent-framework]'"
    ) from _missing


def count_repeated(known: Sequence[Message], messages: Sequence[Message]) -> int:
    """
    Return how many messages at the beginning of a run repeat the end of the conversation.

    A host may send known messages again. Messages without ids count as repeated only if they are more than a single
    user message, and a new message of another role than "assistant" follows. A user may repeat a message and get the
    same answer, which must be stored.
    """
    before, given = [*map(_get_identity, known)], [*map(_get_identity, messages)]
    same = (count for count in range(min(len(before), len(given)), 0, -1) if before[-count:] == given[:count])
    return next((count for count in same if _is_resent(messages[:count], messages[count:])), 0)


def _is_resent(same: Sequence[Message], new: Sequence[Message]) -> bool:
    is_continued = bool(new) and new[0].role != "assistant" and (len(same) > 1 or same[0].role != "user")
    return is_continued or any(one.message_id is not None for one in same)


def _get_identity(message: Message) -> object:
    return message.message_id or (message.role, [one.to_dict() for one in message.contents])
