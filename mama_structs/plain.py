"""How models of this package are written as plain data, for whoever meets one and does not know it."""

from __future__ import annotations

import functools
from typing import Any


@functools.singledispatch
def written(value: object) -> Any:
    """Return the plain data that a registered type is written as; what is of no registered type comes back itself."""
    return value
