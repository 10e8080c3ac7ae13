"""What the adapters of several providers do alike with calls of tools."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from mama_structs.adapters.answers import Answer, failed
from mama_structs.errors import InvalidArgument
from mama_structs.tools.tool import ToolSet

_CUT_OFF: Final = "the call was cut off before its arguments were complete, and nothing was done"


def held_strictly(tools: ToolSet, *, strict: bool | Collection[str]) -> frozenset[str]:
    """
    Return the names of the tools to whose schemas a model is to be held.

    Args:
        tools: All tools.
        strict: All of them, none, or those of these names.

    Raises:
        InvalidArgument: It is a single text.
        UnknownTool: There is no tool of such a name.

    """
    if isinstance(strict, bool):
        return frozenset(tools if strict else ())
    if isinstance(strict, str):
        raise InvalidArgument(f"strict must be a bool or names of tools, got {strict!r:.80}", hint="put it in a list")
    return frozenset(tools[name].name for name in strict)


def cut_off() -> Answer:
    """Return the answer to a call that a limit of the model's output cut short: half a text must not be stored."""
    return failed(InvalidArgument(_CUT_OFF, hint="call the tool again, with shorter arguments"))
