"""What a judge is: it says how a new memory stands to older ones of its matter, having read them. Loads no numpy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

from mama_structs.errors import InvalidArgument
from mama_structs.memory.types.model import Memory

Verdict = Literal["copy", "contradict", "replace", "none"]
"""How a new memory stands to an older one."""

VERDICTS: Final[tuple[Verdict, ...]] = ("copy", "contradict", "replace", "none")

Judge = Callable[[Memory, Sequence[Memory]], Any]
"""
Takes a new memory and the older ones of its matter, and returns a `Verdict` for each of their ids; it may be async.

Of what it leaves out, and of all where it returns None, that is noticed which is noticed without a judge.
"""


def check_judge(judge: object) -> None:
    """Refuse what cannot judge; None is no judge."""
    if judge is not None and not callable(judge):
        name = type(judge).__name__
        raise InvalidArgument(f"judge must be a function of a memory and a list of memories, got {name}")
