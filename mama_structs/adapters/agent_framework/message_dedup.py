"""What a conversation of the Agent Framework has already of the messages of a run."""

from __future__ import annotations

from collections.abc import Sequence

try:
    from agent_framework import Message
except ImportError as _missing:
    raise ImportError(
        "adapters for the Agent Framework need it: pip install 'mama-structs[agent-framework]'"
    ) from _missing


def repeated(known: Sequence[Message], messages: Sequence[Message]) -> int:
    """
    Count the messages at the beginning of a run that end a conversation already: a host may send it anew.

    Without ids it is known by what somebody adds to it: a user may say the same again, and be answered the same.
    """
    before, given = [*map(_identity, known)], [*map(_identity, messages)]
    same = (count for count in range(min(len(before), len(given)), 0, -1) if before[-count:] == given[:count])
    return next((count for count in same if _is_sent_anew(messages[:count], messages[count:])), 0)


def _is_sent_anew(same: Sequence[Message], new: Sequence[Message]) -> bool:
    is_continued = bool(new) and new[0].role != "assistant" and (len(same) > 1 or same[0].role != "user")
    return is_continued or any(one.message_id is not None for one in same)


def _identity(message: Message) -> object:
    return message.message_id or (message.role, [one.to_dict() for one in message.contents])
