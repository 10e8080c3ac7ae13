"""
The judge protocol: a host callable that compares a new memory with older ones.

Does not import numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

from mama_structs.errors import InvalidArgument
from mama_structs.memory.types.model import Memory

Verdict = Literal["copy", "contradict", "replace", "none"]
"""Relation of a new memory to an older one."""

VERDICTS: Final[tuple[Verdict, ...]] = ("copy", "contradict", "replace", "none")

Judge = Callable[[Memory, Sequence[Memory]], Any]
"""
Takes a new memory and older memories on the same subject, and returns a `Verdict` for each of their ids. May be async.

Memories without a verdict, or all if it returns None, are handled as if there were no judge.
"""


def check_judge(judge: object) -> None:
    """Raise `InvalidArgument` unless the judge is callable or None."""
    if judge is not None and not callable(judge):
        name = type(judge).__name__
        raise InvalidArgument(f"judge must be a function of a memory and a list of memories, got {name}")
