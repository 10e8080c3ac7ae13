"""What a session recalls for the message that its user wrote last, in the places that frameworks have for it."""

from __future__ import annotations

import logging
from typing import Final

from mama_structs.descriptors.messages import field, said_by_user
from mama_structs.errors import MamaStructsError, SessionClosed, WrongLoop
from mama_structs.session import Session

_log = logging.getLogger("mama_structs")

# Characters of what is recalled, by default.
MAX_CHARS: Final = 2_000


async def recall_for(session: Session, messages: object, *, max_chars: int, again: bool = False) -> str:
    """
    Return what is recalled for the message at the end: "" where the model has begun to answer it, or was told already.

    What cannot be recalled costs no turn: the host finds it in the log.
    """
    said = asked_now(messages)
    if not said:
        return ""
    try:
        return (await session.recall(said, max_chars=max_chars, again=again)).text
    except (SessionClosed, WrongLoop):
        raise
    except MamaStructsError as error:
        _log.warning("nothing is recalled: %s", error)
        return ""


def asked_now(messages: object) -> str:
    """Return what the user wrote at the end of a conversation: "" where anybody has said something since."""
    if not isinstance(messages, list | tuple):
        return said_by_user(messages)
    others = ("system", "developer")
    last = next((one for one in reversed(messages) if (field(one, "role") or field(one, "type")) not in others), None)
    return said_by_user([last])


def recalled_message(text: str) -> dict[str, str]:
    """Return what was recalled as a message: of the user, since no text from memory may speak for the developer."""
    return {"role": "user", "content": text}
