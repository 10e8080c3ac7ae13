"""The default of arguments for which None is a meaningful value."""

from __future__ import annotations

import enum
from typing import Final, Literal, TypeAlias


class _Unset(enum.Enum):
    UNSET = "UNSET"

    def __repr__(self) -> str:
        return "UNSET"

    def __bool__(self) -> bool:
        return False


UNSET: Final = _Unset.UNSET
"""Stands for an argument that is not given."""
Unset: TypeAlias = Literal[_Unset.UNSET]
"""The type of `UNSET`."""
